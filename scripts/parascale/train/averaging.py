"""How ranks that train apart come together: these are other algorithms, not other layouts of one training.

Each rank makes `average_every` steps with its own share of the batch; then

- all: everyone goes on from the mean of all. Local SGD: Stich 2019, arXiv:1805.09767.
- neighbour: everyone goes on from the mean of itself and one neighbour on a ring, left and right in turn: an update reaches all ranks
  after ranks / 2 rounds. Gossip: Lian et al. 2017, arXiv:1705.09056.
- server: one rank brings a parameter server what it has learned since its last visit, and goes on from what the server has by then.
  The others' parameters are as old as their own last visits.
  Asynchronous SGD: Dean et al. 2012, "Large scale distributed deep networks"; here ranks take turns, as in Zinkevich et al. 2009,
  "Slow learners are fast", so that a run can be repeated bit for bit. For teaching: it saves no time.

An evaluation, and the end, need one model: there, everyone takes the mean of all, or visits the server.
"""

import torch
import torch.distributed as dist


def make_averager(run, model):
    """The averager of a run's model, or None where ranks do not train apart."""
    kinds = {"all": AllReduce, "neighbour": Gossip, "server": Server}
    return kinds[run.averaging](run, model) if run.average_every else None


class AllReduce:
    """Everyone goes on from the mean of all, which is one model at any time."""

    def __init__(self, run, model):
        self.every, self.evaluated = run.average_every, run.workload.training.evaluate_every
        self.model, self.group = model, model.mesh.data_devices.get_group()
        self.rank, self.ranks = model.mesh.data_rank, model.mesh.layout.data_parallel

    def begin(self):
        """Before the first step of all."""

    def after(self, step, last):
        """After a step, come together if it is time for it."""
        if last or (self.evaluated and step % self.evaluated == 0):
            self.agree()
        elif step % self.every == 0:
            self.average(step // self.every - (step // self.evaluated if self.evaluated else 0))

    def average(self, turn):
        """Come together for the turn-th time (from 1), not counting the times when all agree on one model."""
        self.agree()

    def agree(self):
        """Leave all ranks with the same parameters."""
        own = self.parameters()
        dist.all_reduce(own, group=self.group)
        self.take(own.div_(self.ranks))

    def parameters(self):
        """A copy of this rank's parameters, as one vector: one message carries it."""
        return torch.cat([parameter.detach().flatten() for _, parameter in self.model.named_parameters()])

    @torch.no_grad()
    def take(self, vector):
        """Go on from these parameters."""
        parameters = [parameter for _, parameter in self.model.named_parameters()]
        pieces = vector.split([parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.copy_(piece.view_as(parameter))


class Gossip(AllReduce):
    """Everyone goes on from the mean of itself and of the neighbour on its left or right, in turn."""

    def average(self, turn):
        """Ranks 2k and 2k + 1 meet at odd turns, 2k + 1 and 2k + 2 at even ones. Their number is even."""
        right = (self.rank + turn) % 2
        neighbour = (self.rank + (1 if right else -1)) % self.ranks
        own = self.parameters()
        theirs = torch.empty_like(own)
        talks = [
            dist.P2POp(dist.isend, own, group=self.group, group_peer=neighbour),
            dist.P2POp(dist.irecv, theirs, group=self.group, group_peer=neighbour),
        ]
        for talk in dist.batch_isend_irecv(talks):
            talk.wait()
        self.take(own.add_(theirs).div_(2))


class Server(AllReduce):
    """One rank at a time visits the parameter server, which the first rank keeps.

    Its parameters, and those that each rank took home from its last visit, are kept with the rank's state in checkpoints.
    """

    def __init__(self, run, model):
        super().__init__(run, model)
        self.fetched = torch.empty_like(self.parameters())
        model.kept = {"fetched": self.fetched}
        if self.rank == 0:
            self.held = torch.empty_like(self.fetched)
            model.kept["server"] = self.held

    def begin(self):
        """Before the first step of all, the server has the weights that everyone begins with."""
        for vector in self.model.kept.values():
            vector.copy_(self.parameters())

    def average(self, turn):
        """The ranks visit one after the other, the first one first."""
        self._visit((turn - 1) % self.ranks)

    def agree(self):
        """Everyone visits, and then all go on from the same parameters."""
        for visitor in range(self.ranks):
            self._visit(visitor)
        if self.rank == 0:
            self.fetched.copy_(self.held)
        dist.broadcast(self.fetched, group=self.group, group_src=0)
        self.take(self.fetched)

    def _visit(self, visitor):
        """What a rank learned counts for its share of the ranks, as in a mean of all."""
        if self.rank not in (0, visitor):
            return
        learned = self.parameters().sub_(self.fetched) if self.rank == visitor else torch.empty_like(self.fetched)
        if visitor != 0:
            self._send(learned, visitor, 0)
        if self.rank == 0:
            self.held.add_(learned, alpha=1 / self.ranks)
            learned.copy_(self.held)
        if visitor != 0:
            self._send(learned, 0, visitor)
        if self.rank == visitor:
            self.fetched.copy_(learned)
            self.take(self.fetched)

    def _send(self, vector, source, target):
        if self.rank == source:
            dist.send(vector, group=self.group, group_dst=target)
        else:
            dist.recv(vector, group=self.group, group_src=source)
