"""Runs a batch script by Slurm: by its real daemons on this machine, or by stand-ins for srun, scontrol and scancel."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Mapping, Sequence

from ports import free_port
from server import until

# Each node has its own address, so that all servers have the same port, as they have on different machines.
NODES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
# The daemons run as the user of the tests.
USER = getpass.getuser()

SRUN = r"""#!/usr/bin/env python3
'''Runs a command once for each task, in a process group for each task.'''
import os, signal, subprocess, sys
options, command = {}, sys.argv[1:]
while command and command[0].startswith('--'):
    name, _, value = command.pop(0)[2:].partition('=')
    options[name] = value
het = options.get('het-group')
nodes = os.environ['SLURM_JOB_NODELIST' + ('' if het is None else f'_HET_GROUP_{het}')].split(',')
count = int(options.get('ntasks', os.environ.get('SLURM_NTASKS', len(nodes))))
folder = os.environ['STAND_IN_FOLDER']
step = len([name for name in os.listdir(folder) if name.startswith('step-')])
tasks = []
for number in range(count):
    node = nodes[number * len(nodes) // count]
    env = {**os.environ, 'SLURMD_NODENAME': node, 'SLURM_PROCID': str(number), 'SLURM_NTASKS': str(count)}
    tasks.append(subprocess.Popen(command, env=env, start_new_session=True))
with open(f'{folder}/step-{step}.new', 'w') as file:
    file.write(' '.join(str(task.pid) for task in tasks))
os.rename(f'{folder}/step-{step}.new', f'{folder}/step-{step}')
sys.exit(max(task.wait() for task in tasks))
"""
SCONTROL = r"""#!/bin/sh
[ "$1 $2" = "show hostnames" ] || exit 1
echo "$3" | tr , '\n'
"""
SCANCEL = r"""#!/bin/bash
for pid in $(cat "$STAND_IN_FOLDER/step-${2#*.}"); do kill -s "${1#--signal=}" -- "-$pid"; done
"""

CONFIG = """\
ClusterName=forebay
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName=DEFAULT CPUs=8 State=UNKNOWN
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class StandIns:
    """Programs of the names of Slurm's, which start the tasks of all nodes on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._bin = folder, folder / "bin"
        self._bin.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("scancel", SCANCEL)):
            (self._bin / name).write_text(text)
            (self._bin / name).chmod(0o755)

    def batch(self, components: Sequence[Sequence[str]], script: Path, *arguments: str, env: Mapping[str, str]) -> "Job":
        """Starts the script of a job with these nodes, one list for each component."""
        variables = {"SLURM_JOB_ID": "7", "STAND_IN_FOLDER": str(self.folder), "SLURM_NTASKS": str(len(components[-1]))}
        if len(components) > 1:
            variables["SLURM_HET_SIZE"] = str(len(components))
            for number, nodes in enumerate(components):
                variables[f"SLURM_JOB_NODELIST_HET_GROUP_{number}"] = ",".join(nodes)
        variables["SLURM_JOB_NODELIST"] = ",".join(components[0])
        path = f"{self._bin}:{os.environ['PATH']}"
        log = self.folder / "job.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["bash", str(script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables, **env, "PATH": path},
            )
        return Job(process, log)

    def close(self) -> None:
        """Kills the tasks of all steps."""
        for step in self.folder.glob("step-*"):
            for pid in step.read_text().split():
                subprocess.run(["kill", "-KILL", "--", f"-{pid}"], check=False, capture_output=True)


class Daemons:
    """A cluster of Slurm on this machine: slurmctld, and a slurmd for each node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = {node: free_port() for node in NODES}
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port}" for node, port in ports.items()
        )
        config = folder / "slurm.conf"
        values = {"host": socket.gethostname(), "controller_port": free_port(), "folder": folder, "nodes": nodes, "user": USER}
        config.write_text(CONFIG.format(**values))
        (folder / "state").mkdir()
        self._env = {**os.environ, "SLURM_CONF": str(config)}
        self._run("slurmctld", "-c")
        for node in NODES:
            self._run("slurmd", "-N", node)
        idle = ["sinfo", "--noheader", "--format=%D", "--states=idle"]
        until(lambda: self._run(*idle).strip() == str(len(NODES)), 30, self._logs)

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def _logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("slurm*.log"))

    def batch(self, components: Sequence[Sequence[str]], script: Path, *arguments: str, env: Mapping[str, str]) -> "Job":
        """Starts the script of a job with these nodes, one list for each component."""
        log = self.folder / "job.log"
        command = ["sbatch", "--wait", f"--output={log}", "--export=ALL"]
        for number, nodes in enumerate(components):
            command += [":"] * (number > 0) + [f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", "--ntasks-per-node=1"]
        process = subprocess.Popen([*command, str(script), *arguments], env={**self._env, **env}, stdin=subprocess.DEVNULL)
        return Job(process, log)

    def close(self) -> None:
        """Stops the daemons, and with them all jobs."""
        subprocess.run(["scancel", "--full", f"--user={USER}"], env=self._env, check=False)
        until(lambda: not self._run("squeue", "--noheader").strip(), 40, self._logs)
        for path in self.folder.glob("slurm*.pid"):
            subprocess.run(["kill", path.read_text().strip()], check=False)


class Job:
    """A running batch script."""

    def __init__(self, process: subprocess.Popen, log: Path) -> None:
        self._process, self._log = process, log

    def wait(self, seconds: float) -> int:
        """Returns the exit status of the script."""
        return self._process.wait(seconds)

    def output(self) -> str:
        """Returns the output so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def is_installed() -> bool:
    return all(shutil.which(name) for name in ("slurmctld", "slurmd", "sbatch"))
