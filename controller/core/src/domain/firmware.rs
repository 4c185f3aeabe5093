//! The guest's firmware: the elements `loader` and `nvram`.
//!
//! Files are those of Debian's package ovmf, in the launcher's image. The variables of EFI are in a file with the
//! lifetime of the pod, as in KubeVirt; QEMU migrates them with the guest's memory.

use drydock_api::{
    kubevirt::domain_spec::{Domain, Efi},
    launcher::DISKS_FOLDER,
};

use super::element::Element;

/// EFI's code and the variables of a new machine.
const PLAIN: [&str; 2] = ["/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"];
/// EFI's code and the variables of a new machine, with secure boot and Microsoft's certificates.
const SECURE: [&str; 2] = [
    "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd",
    "/usr/share/OVMF/OVMF_VARS_4M.ms.fd",
];
/// The file with the guest's variables, in [`DISKS_FOLDER`]. No disk has a file name that ends like this.
const VARIABLES: &str = "firmware.fd";

/// Returns whether the guest boots signed systems only.
pub(super) fn is_secure(domain: &Domain) -> bool {
    domain.efi().is_some_and(Efi::is_secure)
}

/// Returns the elements of the firmware: none for BIOS.
pub(super) fn elements(domain: &Domain) -> Vec<Element> {
    let Some(efi) = domain.efi() else {
        return Vec::new();
    };
    let (secure, [code, variables]) = if efi.is_secure() {
        ("yes", SECURE)
    } else {
        ("no", PLAIN)
    };
    vec![
        Element::text("loader", code)
            .with("readonly", "yes")
            .with("secure", secure)
            .with("type", "pflash"),
        Element::text("nvram", format!("{DISKS_FOLDER}/{VARIABLES}")).with("template", variables),
    ]
}
