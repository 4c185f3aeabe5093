//! Where things lie in the pod.
//!
//! ```text
//! /run/drydock                     the run volume, shared with the agent; home of everything here
//!   ready.json  readiness.json  console.sock
//!   libvirt/libvirt-sock           libvirt's socket
//!   migration                      sockets through which the guest moves
//!   libvirt/qemu/run               one state file and one PID file for each live domain
//!   cache/libvirt/qemu/log         one log for each domain
//!   cache/libvirt/qemu/cache/capabilities  what libvirt knows of its QEMU
//!   config  data  tmp
//! /var/lib/drydock/disks           the disks volume
//! /var/lib/drydock/capabilities    the same as the node knows it, from its agent
//! /images  /volumes  /devices  /secrets      what the manifest names, by the names of its volumes
//! ```

use std::path::{Path, PathBuf};

use drydock_api::launcher::{
    CAPABILITIES_FOLDER, CAPABILITIES_IN_CACHE, CONSOLE_SOCKET, DEVICES_FOLDER, DISKS_FOLDER, IMAGES_FOLDER,
    LIBVIRT_SOCKET, MIGRATION_FOLDER, MIGRATION_LEFT_FILE, READINESS_FILE, READY_FILE, RUN_FOLDER, SECRETS_FOLDER,
    USERFAULTFD, VOLUMES_FOLDER,
};

/// The pod's folders, below `/` unless a test has its own root.
#[derive(Clone, Debug)]
pub(crate) struct Folders {
    root: PathBuf,
}

impl Folders {
    /// The folders below `root`.
    pub(crate) fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn place(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// Everything that is not a disk; shared with the agent.
    pub(crate) fn run(&self) -> PathBuf {
        self.place(RUN_FOLDER)
    }

    /// Says that the pod is ready.
    pub(crate) fn ready(&self) -> PathBuf {
        self.run().join(READY_FILE)
    }

    /// The result of the guest's readiness probe.
    pub(crate) fn readiness(&self) -> PathBuf {
        self.run().join(READINESS_FILE)
    }

    /// The device by which QEMU waits for memory.
    pub(crate) fn userfaultfd(&self) -> PathBuf {
        self.place(USERFAULTFD)
    }

    /// The guest's first serial port is connected to it.
    pub(crate) fn console(&self) -> PathBuf {
        self.run().join(CONSOLE_SOCKET)
    }

    /// libvirt's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.run().join(LIBVIRT_SOCKET)
    }

    /// libvirt's folder of sockets.
    pub(crate) fn libvirt(&self) -> PathBuf {
        self.run().join("libvirt")
    }

    /// Sockets through which a guest moves; made by tunnel, libvirt and QEMU.
    pub(crate) fn migration(&self) -> PathBuf {
        self.run().join(MIGRATION_FOLDER)
    }

    /// Says that the guest has left for good.
    pub(crate) fn left(&self) -> PathBuf {
        self.run().join(MIGRATION_LEFT_FILE)
    }

    /// What libvirt keeps of live domains.
    pub(crate) fn domains(&self) -> PathBuf {
        self.run().join("libvirt/qemu/run")
    }

    /// What libvirt keeps of a live domain: its state, its job, and all about its QEMU.
    pub(crate) fn state(&self, domain: &str) -> PathBuf {
        self.domains().join(format!("{domain}.xml"))
    }

    /// libvirt's and QEMU's settings.
    pub(crate) fn settings(&self) -> PathBuf {
        self.run().join("config")
    }

    /// `XDG_CACHE_HOME`.
    pub(crate) fn cache(&self) -> PathBuf {
        self.run().join("cache")
    }

    /// Where libvirt keeps what it knows of its QEMU.
    pub(crate) fn capabilities(&self) -> PathBuf {
        self.cache().join(CAPABILITIES_IN_CACHE)
    }

    /// What the node knows of it already; may not be there.
    pub(crate) fn known_capabilities(&self) -> PathBuf {
        self.place(CAPABILITIES_FOLDER)
    }

    /// `XDG_DATA_HOME`.
    pub(crate) fn data(&self) -> PathBuf {
        self.run().join("data")
    }

    /// `TMPDIR`.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.run().join("tmp")
    }

    /// What QEMU and libvirt write about the processes of domains.
    pub(crate) fn logs(&self) -> PathBuf {
        self.cache().join("libvirt/qemu/log")
    }

    /// The same of one domain.
    pub(crate) fn log(&self, domain: &str) -> PathBuf {
        self.logs().join(format!("{domain}.log"))
    }

    /// Disks that live as long as the pod.
    pub(crate) fn disks(&self) -> PathBuf {
        self.place(DISKS_FOLDER)
    }

    /// The root of a containerDisk's image.
    pub(crate) fn image(&self, volume: &str) -> PathBuf {
        self.place(IMAGES_FOLDER).join(volume)
    }

    /// A volume with a file system.
    pub(crate) fn volume(&self, volume: &str) -> PathBuf {
        self.place(VOLUMES_FOLDER).join(volume)
    }

    /// A block volume.
    pub(crate) fn device(&self, volume: &str) -> PathBuf {
        self.place(DEVICES_FOLDER).join(volume)
    }

    /// A volume's Secrets.
    pub(crate) fn secrets(&self, volume: &str) -> PathBuf {
        self.place(SECRETS_FOLDER).join(volume)
    }
}
