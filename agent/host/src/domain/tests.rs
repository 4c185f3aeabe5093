//! Connections by libvirt's test driver, which has no daemon.
