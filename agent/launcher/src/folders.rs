//! Paths of all files in the pod.
//!
//! ```text
//! /run/drydock                     the run volume, shared with the agent; HOME of all programs here
//!   ready.json  readiness.json  console.sock  console-client.sock
//!   libvirt/libvirt-sock           libvirt's socket
//!   migration                      sockets for the guest's migration
//!   libvirt/qemu/run               one state file and one PID file for each live domain
//!   cache/libvirt/qemu/log         one log for each domain
//!   cache/libvirt/qemu/cache/capabilities  QEMU capabilities probed by libvirt
//!   config  data  tmp
//! /var/lib/drydock/disks           the disks volume
//! /var/lib/drydock/capabilities    QEMU capabilities provided by the node's agent
//! /images  /volumes  /devices  /secrets      the manifest's volumes, by their names
//! ```

use std::path::{Path, PathBuf};

use drydock_api::launcher::{
    CAPABILITIES_FOLDER, CAPABILITIES_IN_CACHE, CONSOLE_CLIENT_SOCKET, CONSOLE_SOCKET, DEVICES_FOLDER, DISKS_FOLDER,
    IMAGES_FOLDER, LIBVIRT_SOCKET, MIGRATION_FOLDER, MIGRATION_LEFT_FILE, READINESS_FILE, READY_FILE, RUN_FOLDER,
    SECRETS_FOLDER, USERFAULTFD, VOLUMES_FOLDER,
};

/// Folders of the pod, below `/` or below the root of a test.
#[derive(Clone, Debug)]
pub(crate) struct Folders {
    root: PathBuf,
}

impl Folders {
    /// Returns the folders below `root`.
    pub(crate) fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn place(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// Returns the folder of all files that are not disks. The folder is shared with the agent.
    pub(crate) fn run(&self) -> PathBuf {
        self.place(RUN_FOLDER)
    }

    /// Returns the file that marks the pod as ready.
    pub(crate) fn ready(&self) -> PathBuf {
        self.run().join(READY_FILE)
    }

    /// Returns the file with the result of the guest's readiness probe.
    pub(crate) fn readiness(&self) -> PathBuf {
        self.run().join(READINESS_FILE)
    }

    /// Returns the device that QEMU needs for post-copy.
    pub(crate) fn userfaultfd(&self) -> PathBuf {
        self.place(USERFAULTFD)
    }

    /// Returns the socket for the guest's first serial port.
    pub(crate) fn console(&self) -> PathBuf {
        self.run().join(CONSOLE_SOCKET)
    }

    /// Returns the socket for the client of the guest's first serial port.
    pub(crate) fn console_client(&self) -> PathBuf {
        self.run().join(CONSOLE_CLIENT_SOCKET)
    }

    /// Returns libvirt's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.run().join(LIBVIRT_SOCKET)
    }

    /// Returns libvirt's folder of sockets.
    pub(crate) fn libvirt(&self) -> PathBuf {
        self.run().join("libvirt")
    }

    /// Returns the folder of migration sockets, which are created by the tunnel, libvirt and QEMU.
    pub(crate) fn migration(&self) -> PathBuf {
        self.run().join(MIGRATION_FOLDER)
    }

    /// Returns the file that marks that the guest has migrated away permanently.
    pub(crate) fn left(&self) -> PathBuf {
        self.run().join(MIGRATION_LEFT_FILE)
    }

    /// Returns the folder of libvirt's state files of live domains.
    pub(crate) fn domains(&self) -> PathBuf {
        self.run().join("libvirt/qemu/run")
    }

    /// Returns libvirt's state file of a live domain, which contains its state, its job, and its QEMU.
    pub(crate) fn state(&self, domain: &str) -> PathBuf {
        self.domains().join(format!("{domain}.xml"))
    }

    /// Returns the folder of the settings of libvirt and QEMU.
    pub(crate) fn settings(&self) -> PathBuf {
        self.run().join("config")
    }

    /// Returns the folder for `XDG_CACHE_HOME`.
    pub(crate) fn cache(&self) -> PathBuf {
        self.run().join("cache")
    }

    /// Returns libvirt's cache of QEMU capabilities.
    pub(crate) fn capabilities(&self) -> PathBuf {
        self.cache().join(CAPABILITIES_IN_CACHE)
    }

    /// Returns the folder of QEMU capabilities that the node already has. The folder may not exist.
    pub(crate) fn known_capabilities(&self) -> PathBuf {
        self.place(CAPABILITIES_FOLDER)
    }

    /// Returns the folder for `XDG_DATA_HOME`.
    pub(crate) fn data(&self) -> PathBuf {
        self.run().join("data")
    }

    /// Returns the folder for `TMPDIR`.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.run().join("tmp")
    }

    /// Returns the folder of logs that libvirt and QEMU write about the domains' processes.
    pub(crate) fn logs(&self) -> PathBuf {
        self.cache().join("libvirt/qemu/log")
    }

    /// Returns the log of one domain.
    pub(crate) fn log(&self, domain: &str) -> PathBuf {
        self.logs().join(format!("{domain}.log"))
    }

    /// Returns the folder of disks that exist as long as the pod.
    pub(crate) fn disks(&self) -> PathBuf {
        self.place(DISKS_FOLDER)
    }

    /// Returns the root folder of a containerDisk's image.
    pub(crate) fn image(&self, volume: &str) -> PathBuf {
        self.place(IMAGES_FOLDER).join(volume)
    }

    /// Returns the folder of a volume with a file system.
    pub(crate) fn volume(&self, volume: &str) -> PathBuf {
        self.place(VOLUMES_FOLDER).join(volume)
    }

    /// Returns the device of a block volume.
    pub(crate) fn device(&self, volume: &str) -> PathBuf {
        self.place(DEVICES_FOLDER).join(volume)
    }

    /// Returns the folder of a volume's Secrets.
    pub(crate) fn secrets(&self, volume: &str) -> PathBuf {
        self.place(SECRETS_FOLDER).join(volume)
    }
}
