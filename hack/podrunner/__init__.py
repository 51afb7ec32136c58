# SPDX-License-Identifier: Apache-2.0
"""The kubelet of pods whose images are under `flexinfer.local/`: it runs them as local processes.

kwok, which plays the kubelet of all other pods, leaves these alone, deletion included. A container
is a process of this machine with the pod's environment; there is no image, no namespace of mounts
or of networks, and no limit on what it uses. Hence:

- Arguments and variables that name a mount path, or something below it, get the folder that
  stands for it. `readOnly` is accepted and not enforced.
- `flexinfer.local/flexinfer` runs the `flexinfer` of this checkout, as the image's entry point
  does; other images need a command.
- SIGTERM goes to the container's whole process group.

Carried out: Jobs and other pods that end, restart policies, environment with `secretKeyRef` and
`fieldRef`, claims, emptyDir and hostPath, termination messages, deletion with its grace period,
readiness by httpGet and tcpSocket. Refused with a waiting reason that says so: init containers,
`envFrom`, volumes and variables from Secrets and ConfigMaps, other readiness probes. Not looked
at: liveness and startup probes, lifecycle hooks, resources, security contexts. Pods get no
address.

- `pod`: what is read of a pod, and written to its status.
- `environment`, `volumes`, `launch`: from a container's spec to a process to start; `refusal`:
  why not.
- `runtime`: the processes, under a supervisor that outlives the runner for as long as they do.
- `record`, `backoff`, `termination`: what a container has been through.
- `status`: a pod's status, from what its containers have been through; pure.
- `readiness`: asks a server whether it is ready.
- `starter`: brings one container nearer to its end.
- `reconciler`: brings one pod nearer to its end.
- `runner`: all of it together; `python -m hack.podrunner` runs that.
- `process`: the runner as a process of a local control plane.
"""
