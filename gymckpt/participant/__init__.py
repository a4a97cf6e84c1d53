"""
The environment's side: what a backend builds on to take part in checkpoints.

`control` is one server's control plane, pure and synchronous; `store` its records on disk;
`deployment` brings the servers of one instance together behind the `checkpoint_*` methods, to be
subclassed; `gymnasium` hosts real Gymnasium environments, and is imported from there because it
needs that package. Nothing here is imported by the controller's side.
"""

from gymckpt.participant.boundary import answers
from gymckpt.participant.control import ControlPlane
from gymckpt.participant.deployment import Deployment
from gymckpt.participant.episodes import EpisodeBody, LiveEpisode
from gymckpt.participant.servers import Kind, Server
from gymckpt.participant.store import Record, RecordsManifest, RecordsStore

__all__ = [
    "ControlPlane",
    "Deployment",
    "EpisodeBody",
    "Kind",
    "LiveEpisode",
    "Record",
    "RecordsManifest",
    "RecordsStore",
    "Server",
    "answers",
]
