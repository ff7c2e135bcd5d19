"""What `scontrol --oneliner` prints on clusters of other shapes than JURECA's: nodes, partitions, configuration; and what is to be found.

The clusters are composed: their lines have the fields of Slurm 22.05 to 24.05 in their order, with long ones left out, and made-up names.
RECORDED has what real ones printed, where it is published.
"""

# Typed GPUs in two sizes, shared nodes without SMT, nodes without GPUs that have fewer cores, one node in maintenance, one partition
# closed.
SHARED = (
    """\
NodeName=g01 Arch=x86_64 CoresPerSocket=48 CPUAlloc=12 CPUEfctv=96 CPUTot=96 CPULoad=3.10 AvailableFeatures=rome,a100 ActiveFeatures=rome,a100 Gres=gpu:a100_80gb:8(S:0-1) NodeAddr=g01 NodeHostName=g01 Version=23.11.4 OS=Linux 5.14.0-362.el9.x86_64 #1 SMP PREEMPT_DYNAMIC Tue Jan 9 RealMemory=1031000 AllocMem=98304 FreeMem=800000 Sockets=2 Boards=1 State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu,gpu-short CfgTRES=cpu=96,mem=1031000M,billing=96,gres/gpu=8,gres/gpu:a100_80gb=8
NodeName=g02 Arch=x86_64 CoresPerSocket=48 CPUAlloc=0 CPUEfctv=96 CPUTot=96 CPULoad=0.01 Gres=gpu:a100_80gb:8(S:0-1) RealMemory=1031000 Sockets=2 Boards=1 State=IDLE+MAINTENANCE+RESERVED ThreadsPerCore=1 Partitions=gpu,gpu-short ReservationName=maint
NodeName=g03 Arch=x86_64 CoresPerSocket=32 CPUAlloc=0 CPUTot=64 Gres=gpu:v100:4 RealMemory=385000 Sockets=2 State=IDLE ThreadsPerCore=1 Partitions=gpu
NodeName=c01 Arch=x86_64 CoresPerSocket=20 CPUAlloc=0 CPUTot=40 Gres=(null) RealMemory=191000 Sockets=2 State=IDLE ThreadsPerCore=1 Partitions=cpu Comment=old node: ask Gres=gpu:1 of support
NodeName=c02 Arch=x86_64 CoresPerSocket=20 CPUAlloc=0 CPUTot=40 Gres=(null) RealMemory=191000 Sockets=2 State=IDLE ThreadsPerCore=1 Partitions=cpu,closed
""",
    """\
PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=01:00:00 MaxNodes=UNLIMITED MaxTime=7-00:00:00 MinNodes=0 Nodes=c[01-02] OverSubscribe=NO State=UP TotalCPUs=80 TotalNodes=2
PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=normal,long AllocNodes=ALL Default=NO QoS=gpu_part DefaultTime=01:00:00 MaxNodes=2 MaxTime=2-00:00:00 MinNodes=0 Nodes=g[01-03] OverSubscribe=NO State=UP TotalCPUs=256 TotalNodes=3
PartitionName=gpu-short AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=NO QoS=N/A MaxNodes=UNLIMITED MaxTime=00:30:00 Nodes=g[01-02] OverSubscribe=NO State=UP TotalNodes=2
PartitionName=closed Default=NO QoS=N/A MaxTime=UNLIMITED Nodes=c02 State=DOWN TotalNodes=1
""",
    """\
Configuration data as of 2026-11-22T10:00:00
AccountingStorageEnforce = associations,limits,qos,safe
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = meadow
MinJobAge               = 30 sec
SelectTypeParameters    = CR_CORE_MEMORY

Slurmctld(primary) at slurm01 is UP
""",
)
# AMD's GPUs, whole nodes, SMT, a default partition with GPUs, no limit on time.
AMD = (
    """\
NodeName=nid005001 Arch=x86_64 CoresPerSocket=64 CPUAlloc=0 CPUEfctv=112 CPUTot=128 CPULoad=0.00 AvailableFeatures=AMD_EPYC_7A53,x1205 Gres=gpu:mi250:8 NodeAddr=nid005001 RealMemory=491520 Sockets=1 Boards=1 CoreSpecCount=8 State=IDLE ThreadsPerCore=2 Partitions=standard-g,dev-g
NodeName=nid005002 Arch=x86_64 CoresPerSocket=64 CPUAlloc=112 CPUTot=128 Gres=gpu:mi250:8 RealMemory=491520 Sockets=1 State=ALLOCATED ThreadsPerCore=2 Partitions=standard-g,dev-g
""",
    """\
PartitionName=dev-g Default=NO QoS=N/A MaxNodes=32 MaxTime=02:00:00 Nodes=nid[005001-005002] OverSubscribe=NO State=UP TotalNodes=2
PartitionName=standard-g Default=YES QoS=N/A MaxNodes=1024 MaxTime=UNLIMITED Nodes=nid[005001-005002] OverSubscribe=EXCLUSIVE State=UP TotalNodes=2
""",
    """\
AccountingStorageEnforce = associations,limits
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = northern
MinJobAge               = 300 sec
""",
)
# A workstation: GPUs without a type, no accounting, no maximum of nodes; cores with two threads that Slurm counts once.
SMALL = (
    "NodeName=box CoresPerSocket=16 CPUAlloc=0 CPUTot=16 Gres=gpu:2 RealMemory=128000 Sockets=1 State=IDLE ThreadsPerCore=2 Partitions=debug\n",
    "PartitionName=debug Default=YES QoS=N/A MaxNodes=UNLIMITED MaxTime=UNLIMITED Nodes=box OverSubscribe=NO State=UP TotalNodes=1\n",
    "AccountingStorageEnforce = none\nAccountingStorageType   = accounting_storage/none\nMinJobAge               = 300 sec\n",
)
# Where it is published → nodes and partitions (empty where only nodes are), a line each; some fields that a survey does not read are left out.
RECORDED = {
    "https://github.com/NKI-AI/kosmos-documentation, docs/slurm_usage_guide.rst": (
        "NodeName=ptolemaeus Arch=x86_64 CoresPerSocket=32 CPUAlloc=32 CPUTot=128 CPULoad=11.37 AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:8(S:0-1) Version=21.08.8 OS=Linux 5.4.0-137-generic #154-Ubuntu SMP Thu Jan 5 17:03:22 UTC 2023 RealMemory=980330 AllocMem=210304 FreeMem=298006 Sockets=2 Boards=1 State=MIXED ThreadsPerCore=2 Partitions=a6000 CfgTRES=cpu=128,mem=980330M,billing=128,gres/gpu=8",
        "",
    ),
    # A virtual machine: Slurm takes each of its processors for a socket.
    "https://github.com/gnosia93/slurm-on-aws": (
        "NodeName=gpu-st-ml-1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUEfctv=32 CPUTot=32 CPULoad=1.23 AvailableFeatures=static,g7e.8xlarge,dist-ml,efa,gpu Gres=gpu:rtxproserver6000:1 Version=24.11.7 OS=Linux 6.8.0-1045-aws #47~22.04.1-Ubuntu SMP Thu Jan 29 21:28:23 UTC 2026 RealMemory=249036 AllocMem=0 FreeMem=239612 Sockets=32 Boards=1 State=IDLE+CLOUD ThreadsPerCore=1 Partitions=compute-gpu CfgTRES=cpu=32,mem=249036M,billing=32 AllocTRES= Reason=Node start up [root@2026-03-11T11:05:51]",
        "",
    ),
    # Nobody told Slurm how much memory it has.
    "https://github.com/awslabs/awsome-distributed-ai/issues/195": (
        "NodeName=yigou-dev-102-68 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUEfctv=8 CPUTot=8 Gres=gpu:nvidia-rtx-3090:1 Version=24.05.0-0rc1 RealMemory=1 AllocMem=0 FreeMem=340 Sockets=8 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 Partitions=compute100 CfgTRES=cpu=8,mem=1M,billing=8,gres/gpu=1 Reason=gres/gpu count reported lower than configured (0 < 1) [slurm@2024-12-19T11:03:34]",
        "",
    ),
    # Two kinds of GPUs in a partition, of which one node is shown, reserved and in use; no default partition here.
    "Juno of the University of Texas at Dallas, its guide to Slurm's commands (May 2026)": (
        "NodeName=g-04-02 Arch=x86_64 CoresPerSocket=32 CPUAlloc=36 CPUEfctv=64 CPUTot=64 CPULoad=31.02 Gres=gpu:nvidia_h100_80gb_hbm3:4(S:0-1) NodeAddr=g-04-02 NodeHostName=g-04-02 Version=24.11.5 OS=Linux 5.14.0-503.40.1.el9_5.x86_64 RealMemory=512000 AllocMem=327680 FreeMem=390855 Sockets=2 Boards=1 State=MIXED+RESERVED ThreadsPerCore=1 TmpDisk=0 Partitions=h100 CfgTRES=cpu=64,mem=500G,billing=64,gres/gpu=4,gres/gpu:nvidia_h100_80gb_hbm3=4 ReservationName=czhang",
        "PartitionName=h100 AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=juno DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=2-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=g-04-02,g-05-01,g-06-01 PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=REQUEUE State=UP TotalCPUs=192 TotalNodes=3 TRES=cpu=192,mem=1500G,node=3,billing=192,gres/gpu=7,gres/gpu:nvidia_h100_80gb_hbm3=4,gres/gpu:nvidia_h100_nvl=3",
    ),
    # Other accelerators beside the GPU, threads of cores as CPUs in a virtual machine, more nodes allowed than there are.
    "notes on a small cluster with Slurm 23.02.4 (March 2024)": (
        "NodeName=mn1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=6 CPUEfctv=6 CPUTot=6 CPULoad=22.10 AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:GTX1660Super:1,npu:Ascend910:4 NodeAddr=mn1 NodeHostName=mn1 Version=23.02.4 OS=Linux 3.10.0-1160.71.1.el7.x86_64 #1 SMP Tue Jun 28 15:37:28 UTC 2022 RealMemory=15800 AllocMem=4596 FreeMem=425 Sockets=3 Boards=1 State=ALLOCATED ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=normal_master CfgTRES=cpu=6,mem=15800M,billing=11,gres/gpu=1 Comment=string",
        "PartitionName=normal AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=N/A DefaultTime=5-00:00:00 MaxNodes=3 MaxTime=5-00:00:00 MinNodes=0 Nodes=cn[1-2] OverSubscribe=NO State=UP TotalCPUs=22 TotalNodes=2 TRES=cpu=22,mem=47700M,node=2,billing=37,gres/gpu=2 TRESBillingWeights=CPU=1.0,Mem=0.25G,gres/gpu=2.0\n"
        "PartitionName=normal_master AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=5-00:00:00 MaxNodes=3 MaxTime=5-00:00:00 MinNodes=0 Nodes=mn1 OverSubscribe=NO State=UP TotalCPUs=6 TotalNodes=1 TRES=cpu=6,mem=15800M,node=1,billing=11,gres/gpu=1 TRESBillingWeights=CPU=1.0,Mem=0.25G,gres/gpu=2.0",
    ),
    # Local disks as a resource beside the GPUs; two threads a core; a node of two partitions.
    "Biowulf of the NIH, a user's notes (December 2022)": (
        "NodeName=cn1092 Arch=x86_64 CoresPerSocket=8 CPUAlloc=64 CPUTot=64 CPULoad=6.96 AvailableFeatures=cpu64,core32,g256,ssd3200,e7543p,ibhdr200,gpua100 Gres=gpu:a100:4(S:0-3),lscratch:3200 NodeAddr=cn1092 NodeHostName=cn1092 Version=21.08.8-2 OS=Linux 3.10.0-862.14.4.el7.x86_64 #1 SMP Wed Sep 26 15:12:11 UTC 2018 RealMemory=253400 AllocMem=204800 FreeMem=99636 Sockets=4 Boards=1 State=ALLOCATED ThreadsPerCore=2 TmpDisk=3601900 Weight=10000 Owner=N/A MCS_label=N/A Partitions=interactive,gpu CfgTRES=cpu=64,mem=253400M,billing=64,gres/gpu=4,gres/gpu:a100=4,gres/lscratch=3200",
        "",
    ),
}
# Partitions alone, as two more clusters print them: whole or shared nodes, a partition for MIG, accounts that are kept out, lists of nodes.
PARTITIONS = {
    # Stony Brook University, four of its partitions
    "seawulf": """\
PartitionName=a100 AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=a100-qos DefaultTime=01:00:00 MaxNodes=2 MaxTime=08:00:00 MinNodes=1 LLN=NO MaxCPUsPerNode=64 Nodes=a100-[01-11] OverSubscribe=YES:4 PreemptMode=OFF State=UP TotalCPUs=704 TotalNodes=11 JobDefaults=DefCpuPerGPU=16,DefMemPerGPU=4016 DefMemPerCPU=4016 MaxMemPerCPU=257024
PartitionName=a100-long AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=a100-long-qos DefaultTime=08:00:00 MaxNodes=1 MaxTime=2-00:00:00 MinNodes=1 LLN=NO MaxCPUsPerNode=64 Nodes=a100-[01-11] OverSubscribe=YES:4 PreemptMode=OFF State=UP TotalCPUs=704 TotalNodes=11 JobDefaults=DefCpuPerGPU=16,DefMemPerGPU=4016 DefMemPerCPU=4016 MaxMemPerCPU=257024
PartitionName=large-40core AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=large-40-core-qos DefaultTime=04:00:00 MaxNodes=50 MaxTime=08:00:00 MinNodes=16 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=dn[001-030,032-064],rn[001-006] OverSubscribe=EXCLUSIVE State=UP TotalCPUs=2800 TotalNodes=69 JobDefaults=(null)
PartitionName=extended-96core-shared AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=extended-96core-shared-qos DefaultTime=08:00:00 MaxNodes=1 MaxTime=3-12:00:00 MinNodes=1 LLN=NO MaxCPUsPerNode=96 Nodes=dg[001-048] OverSubscribe=YES:4 State=UP TotalCPUs=4608 TotalNodes=48 JobDefaults=(null)
""",
    # https://doc25.aris.grnet.gr/run/resource_queue, the first
    "aris": """\
PartitionName=compute AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO ExclusiveTopo=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=2-00:00:00 MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED MaxCPUsPerSocket=UNLIMITED Nodes=m[01-48] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=6144 TotalNodes=48 SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=507904 TRES=cpu=6144,mem=23808G,node=48,billing=6144
""",
}
