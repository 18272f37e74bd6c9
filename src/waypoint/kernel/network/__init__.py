"""The network of a box: its own namespace, a cable to the host, and a way out.

**Netlink**: how the kernel is asked. **Veth**: the cable between a box and the host, with its
addresses. **Flows**: what leaves boxes, counted by the firewall. **DNS**: which names a box was given
addresses for.
"""
