# The environment on a machine of the Jülich Supercomputing Centre: modules, and a virtual environment on top of them.
# Source it from bash, on a login node, in the project's folder; sourcing it again changes nothing:
#
#     jutil env activate -p <project>    # sets $PROJECT and $SCRATCH
#     source envs/jsc.sh                 # the first time also installs, for some minutes, and needs the internet
#
# JURECA-DC and JUWELS Booster (x86-64) and JUPITER (Arm) can share this folder in $PROJECT: each machine gets its own
# environment, .venv-<machine>. Python is the machine's; torch comes from PyPI with the CUDA libraries that it was built
# for, because results hold for the versions of envs/constraints.txt, and the PyTorch module changes with the stage.
# On Arm too: PyPI's wheel of torch 2.13 for aarch64 is a build for CUDA 13.0 (it requires nvidia-nccl-cu13), which needs driver 580 or
# newer (wheels up to 2.9 were for CPUs alone). For an older driver PyTorch's own index has builds for CUDA 12:
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu12<minor> source envs/jsc.sh
#
# Another stage (module avail Stages): PARASCALE_STAGE=2026 source envs/jsc.sh
# Compute nodes have no internet: install and download data on a login node. Jobs inherit this environment.

_parascale_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
_parascale_machine=${SYSTEMNAME:-$(cat /etc/FZJ/systemname 2>/dev/null)}
case $_parascale_machine in
  jureca* | juwels* | jupiter*) ;;
  *)
    echo "envs/jsc.sh: this is neither JURECA, JUWELS nor JUPITER; elsewhere 'make install' builds .venv" >&2
    unset _parascale_folder _parascale_machine
    return 1 2>/dev/null || exit 1
    ;;
esac
_parascale_venv=$_parascale_folder/.venv-$_parascale_machine

if [ "${VIRTUAL_ENV:-}" != "$_parascale_venv" ]; then
  # A module's PYTHONPATH would take precedence over the virtual environment.
  module --force purge &&
    module load "Stages/${PARASCALE_STAGE:-2025}" GCC Python && # ~ names of the stage and its modules
    unset PYTHONPATH &&
    if [ ! -e "$_parascale_venv/installed" ]; then
      echo "Installing into $_parascale_venv ..." &&
        python3 -m venv --clear "$_parascale_venv" &&
        "$_parascale_venv/bin/python" -m pip install --no-cache-dir -e "$_parascale_folder[train,workflow]" \
          -c "$_parascale_folder/envs/constraints.txt" &&
        touch "$_parascale_venv/installed" # an interrupted installation starts again
    fi &&
    source "$_parascale_venv/bin/activate" ||
    echo "envs/jsc.sh: the environment is not ready; see above" >&2
fi

unset _parascale_folder _parascale_machine _parascale_venv
