"""What we use of torch, Lightning and Snakemake that they do not promise: found in our code, listed here, there in the versions read.

Whoever moves one of these versions reads the rows of that package again in its source, and then raises the number.
"""

import ast
import importlib.metadata
import importlib.util
import inspect
import pkgutil
from pathlib import Path

import pytest
import snakemake.api  # noqa: F401 (before its `workflow`, which imports it in a circle)

ROOT = Path(__file__).parents[2]
READ = {
    "torch": "2.13.0",
    "lightning": "2.6.6",
    "transformers": "5.23.0",
    "snakemake": "9.27.1",
    "snakemake_executor_plugin_slurm": "2.8.0",
    "snakemake_interface_executor_plugins": "9.4.0",
}
ATTENTION = "torch.ops.aten._scaled_dot_product_"
GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup"
STAGE = "torch.distributed.pipelining.stage._PipelineStageBase"
SLURM = "snakemake_executor_plugin_slurm.Executor"
# Test that fails where they mean something else → names that begin with `_`, methods of theirs that ours override, and what ours replace.
TESTS = {
    "distributed/test_compile.py": """torch._dynamo torch._dynamo.config.fail_on_recompile_limit_hit torch._dynamo.config.recompile_limit
        torch._dynamo.config.accumulated_recompile_limit""",
    "distributed/test_folder_context.py": "transformers.PreTrainedConfig._attn_implementation",
    "distributed/test_parity.py": f"""torch.distributed._functional_collectives torch.distributed._composable torch._foreach_norm
        torch.distributed.tensor.parallel.ParallelStyle._apply torch.distributed.tensor.parallel.ColwiseParallel._prepare_output_fn
        torch.distributed.fsdp.FSDPModule._get_fsdp_state torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._fsdp_param_group
        {STAGE}._prepare_forward_infra {STAGE}._prepare_backward_infra {STAGE}._setup_forward_recv_info
        {STAGE}._create_grad_recv_info torch._foreach_div_ torch._fused_sgd_""",
    "distributed/test_precision.py": "torch._amp_update_scale_",
    "distributed/test_reduce_precision.py": f"""{GROUP}._partial_reduce_output {GROUP}._orig_dtype
        torch.distributed.fsdp._fully_shard._fsdp_collectives torch.distributed.fsdp._fully_shard""",
    "distributed/test_prove.py": """torch.utils._pytree torch.distributed.tensor._utils torch.distributed._tensor torch._C._current_graph_task_id
        torch.nn.Module._non_persistent_buffers_set torch.nn.Module._buffers""",
    "unit/test_check_gpu.py": "torch.compile",
    "unit/test_checkpoint_forms.py": """torch.distributed.checkpoint.filesystem._StorageInfo torch.Tensor._typed_storage
        torch._utils._rebuild_tensor_v2 torch.TypedStorage._pickle_storage_type torch.UntypedStorage._checkpoint_offset
        torch.distributed.checkpoint.utils._create_file_view""",
    "unit/test_checkpoint_saves.py": "torch.distributed.tensor.DTensor._spec",
    "unit/test_crops.py": "torch.ops.aten._upsample_bilinear2d_aa",
    "unit/test_float8.py": "torch.ops.aten._scaled_mm_v2 torch._C._will_engine_execute_node",
    "unit/test_folder_forms.py": "transformers.PreTrainedModel._keys_to_ignore_on_load_unexpected",
    "unit/test_half_deleted.py": "snakemake.io.IOCache.mtime_inventory",
    "unit/test_hang.py": "torch._C torch._C._distributed_c10d torch.distributed.distributed_c10d._world",
    "unit/test_machine.py": "torch.UntypedStorage._cdata",
    "unit/test_mesh.py": """torch.distributed.ProcessGroupGloo._Options torch.distributed.ProcessGroupGloo._Options._timeout
        torch.distributed.distributed_c10d._set_pg_timeout torch.distributed.device_mesh.DeviceMesh._flatten
        torch.distributed.device_mesh.DeviceMesh._concatenate""",
    "unit/test_plan_counted.py": """torch._subclasses torch.utils._python_dispatch torch._ops.OpOverload._overloadpacket""",
    "unit/test_plan_spent.py": "snakemake.workflow.Workflow._localrules",
    "unit/test_packed.py": "torch.autograd.profiler._run_on_profiler_start torch.autograd.profiler._run_on_profiler_stop",
    "unit/test_profile.py": "torch.autograd._disable_profiler_legacy",
    "unit/test_recompute.py": f"""torch.ops._c10d_functional {ATTENTION}cudnn_attention {ATTENTION}efficient_attention
        {ATTENTION}flash_attention {ATTENTION}flash_attention_for_cpu""",
    "unit/test_taken_up.py": f"""{SLURM}._job_submission_executor {SLURM}._report_job_error_threadsafe
        {SLURM}._report_job_submission_threadsafe {SLURM}._failed_nodes snakemake_interface_executor_plugins.registry.Plugin.executor
        snakemake.scheduling.job_scheduler.JobScheduler.exit_gracefully""",
}
USES = {name: test for test, names in TESTS.items() for name in names.split()}
PUBLIC = {"_exit", "_getframe", "_current_frames", "_fields", "backends"}  # of Python; settings that torch documents


def external(name):
    return name.partition(".")[0] in READ


def found():
    """{name: where it is used} of all private names, overridden private methods and replaced attributes of these packages."""
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "scripts").rglob("*.py"))}
    every = [node for tree in trees.values() for node in ast.walk(tree)]
    own = {node.name for node in every if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {node.id for node in every if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {
        n.attr
        for n in every
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and ast.unparse(n.value) == "self"
    }
    uses = {}
    for path, tree in trees.items():
        theirs = {}  # name in this file → dotted name
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and external(node.module or ""):
                theirs |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
            elif isinstance(node, ast.Import):
                theirs |= {(e.asname or e.name.partition(".")[0]): e.name for e in node.names if external(e.name)}
        names = [part for name in theirs.values() for part in name.split(".") if part.startswith("_")]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                root, chain = node, set()
                while isinstance(root, (ast.Attribute, ast.Call)):
                    chain.add(getattr(root, "attr", ""))
                    root = root.value if isinstance(root, ast.Attribute) else root.func
                of_theirs = isinstance(root, ast.Name) and root.id in theirs
                private = node.attr.startswith("_") and not node.attr.startswith("__")
                replaced = of_theirs and isinstance(node.ctx, ast.Store)
                if not chain & PUBLIC and (replaced or (private and (of_theirs or node.attr not in own))):
                    names.append(node.attr)
            elif isinstance(node, ast.ClassDef):
                bases = [pkgutil.resolve_name(theirs[ast.unparse(b)]) for b in node.bases if ast.unparse(b) in theirs]
                methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef) and each.name[1] != "_"]
                names += [name for name in methods if name[0] == "_" and any(hasattr(base, name) for base in bases)]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
                names += [n.value for n in node.args[1:2] if isinstance(n, ast.Constant) and n.value.startswith("_")]
        for name in names:
            uses.setdefault(name, path.relative_to(ROOT))
    return uses


def test_each_private_interface_that_we_use_is_listed():
    uses, listed = found(), {name.rpartition(".")[2] for name in USES}
    assert not {name: str(where) for name, where in uses.items() if name not in listed}
    assert not listed - uses.keys(), "no longer used"


@pytest.mark.parametrize("name", USES)
def test_it_is_there_in_the_version_that_was_read(name):
    package, (home, _, last) = name.partition(".")[0], name.rpartition(".")
    assert importlib.metadata.version(package).partition("+")[0] == READ[package], f"read {name} again in its source"
    owner = pkgutil.resolve_name(home)
    if not hasattr(owner, last):  # each instance has it, or it is a module that nothing has loaded
        source = inspect.getsourcefile(owner if inspect.ismodule(owner) else inspect.getmodule(owner))
        assert last in Path(source).read_text() or importlib.util.find_spec(name)
    assert (ROOT / "tests" / USES[name]).is_file()
