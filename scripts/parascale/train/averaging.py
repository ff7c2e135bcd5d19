"""Averaging of ranks that train independently. These are different algorithms, not different layouts of one training.

Each rank makes `average_every` steps with its own share of the batch; then

- all: every rank continues from the mean of all. Local SGD: Stich 2019, arXiv:1805.09767.
- neighbour: every rank continues from the mean of itself and one neighbour on a ring, alternating left and right: an update reaches all
  ranks after ranks / 2 rounds. Gossip: Lian et al. 2017, arXiv:1705.09056.
- server: one rank sends a parameter server its change since its last visit, and continues from the server's updated parameters.
  The other ranks' parameters are as old as their last visits.
  Asynchronous SGD: Dean et al. 2012, "Large scale distributed deep networks"; here ranks take turns, as in Zinkevich et al. 2009,
  "Slow learners are fast", so that a run can be repeated bit for bit. For teaching: it saves no time.

Evaluations and the end of training need one model: there, all ranks take the mean of all, or visit the server.
"""

import torch
import torch.distributed as dist


def make_averager(run, model):
    """The averager of a run's model, or None if ranks do not train independently."""
    kinds = {"all": AllReduce, "neighbour": Gossip, "server": Server}
    return kinds[run.averaging](run, model) if run.average_every else None


class AllReduce:
    """Every rank continues from the mean of all."""

    def __init__(self, run, model):
        self.every, self.evaluated = run.average_every, run.workload.training.evaluate_every
        self.model, self.group = model, model.mesh.data_devices.get_group()
        self.rank, self.ranks = model.mesh.data_rank, model.mesh.layout.data_parallel

    def begin(self):
        """Called before the first step of the run."""

    def after(self, step, last):
        """Called after each step; averages if it is due."""
        if last or (self.evaluated and step % self.evaluated == 0):
            self.agree()
        elif step % self.every == 0:
            self.average(step // self.every - (step // self.evaluated if self.evaluated else 0))

    def average(self, turn):
        """Average for the turn-th time (from 1), not counting calls of `agree` at evaluations."""
        self.agree()

    def agree(self):
        """Leave all ranks with the same parameters."""
        own = self.parameters()
        dist.all_reduce(own, group=self.group)
        self.take(own.div_(self.ranks))

    def parameters(self):
        """A copy of this rank's parameters as one vector, to send it in one message."""
        return torch.cat([parameter.detach().flatten() for _, parameter in self.model.named_parameters()])

    @torch.no_grad()
    def take(self, vector):
        """Set this rank's parameters."""
        parameters = [parameter for _, parameter in self.model.named_parameters()]
        pieces = vector.split([parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.copy_(piece.view_as(parameter))


class Gossip(AllReduce):
    """Every rank continues from the mean of itself and its left or right neighbour, alternating."""

    def average(self, turn):
        """Ranks 2k and 2k + 1 average at odd turns, 2k + 1 and 2k + 2 at even ones. The number of ranks is even."""
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
    """One rank at a time visits the parameter server, which runs on the first rank.

    Its parameters, and those that each rank fetched on its last visit, are saved in checkpoints.
    """

    def __init__(self, run, model):
        super().__init__(run, model)
        self.fetched = torch.empty_like(self.parameters())
        model.kept = {"fetched": self.fetched}
        if self.rank == 0:
            self.held = torch.empty_like(self.fetched)
            model.kept["server"] = self.held

    def begin(self):
        """Give the server, and each rank's `fetched`, the initial weights."""
        for vector in self.model.kept.values():
            vector.copy_(self.parameters())

    def average(self, turn):
        """The ranks visit in order, starting with rank 0."""
        self._visit((turn - 1) % self.ranks)

    def agree(self):
        """All ranks visit, then continue from the same parameters."""
        for visitor in range(self.ranks):
            self._visit(visitor)
        if self.rank == 0:
            self.fetched.copy_(self.held)
        dist.broadcast(self.fetched, group=self.group, group_src=0)
        self.take(self.fetched)

    def _visit(self, visitor):
        """Add the visitor's change divided by the number of ranks, as in a mean of all, and return the server's parameters to it."""
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
