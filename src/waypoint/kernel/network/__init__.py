"""The network of a box: its own namespace, a cable to the host, and a way out.

**Netlink**: how the kernel is asked about networks. **Rtnetlink**: its requests for interfaces, addresses
and routes. **Cable**: the veth pair between a box and the host; a **lease** is what a box got with it.
**Firewall**: the nftables table of a home. **Sockets**: what listens and what is connected in a box.
**Resolver**: the resolv.conf of a box. **Flows**: what leaves boxes, as the firewall counted it. **DNS**:
which names a box was given addresses for.
"""

GATEWAY = "169.254.77.1"
"""The host, as every box sees it. Link-local and constant: a program that was told its gateway or its
name server before a checkpoint still has the right one after the restore."""

INTERFACE_PREFIX = "wp-"
"""The names of all interfaces on the host that belong to boxes of any home begin like this."""
