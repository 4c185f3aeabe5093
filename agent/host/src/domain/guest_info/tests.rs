//! Guests' agents, as libvirt tells of them.
