"""
The environment's side: what a backend builds on to take part in checkpoints.

`control` is one server's control plane, pure and synchronous; `store` its records on disk;
`deployment` brings the servers of one instance together behind the `checkpoint_*` methods;
`gymnasium` hosts real Gymnasium environments. Nothing here is imported by the controller's side.
"""
