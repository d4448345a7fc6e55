"""The plug-in of the farms: Slurm, Ray, ssh and submit commands."""

from __future__ import annotations

from assay.plugins import Part, Plugin, Program

PLUGIN = Plugin(
    "farms",
    executors={
        "ssh": "assay.farms.ssh:SshExecutor",
        "ray": "assay.farms.ray_tasks:RayExecutor",
        "submit": "assay.farms.submit:SubmitExecutor",
        "slurm": "assay.farms.slurm:SlurmExecutor",
    },
    places="assay.farms.choice:PLACES",
    functions={"complete.FARM": "assay.farms.choice:list_farm_names"},
    doctor=(
        Part("ray", "ray", "assay run --on ray"),
        Program("ssh", "assay run --on ssh:HOST, models on boards", "install OpenSSH's client", "-V"),
        Program("sbatch", "assay run --on slurm", "install Slurm's commands (Debian: slurm-client)"),
    ),
)
