//! The guest that is handed over: 64 KiB of firmware that counts and prints each number.
//!
//! ```text
//!  output at the source: 1 2 3 ... n │ n+1 n+2 ...   output at the target
//! ```
//!
//! The guest counts 100 times a second in its own memory. It prints each number as 4 bytes (little-endian) at its
//! serial port, which is a file on each side. The two outputs are therefore its complete history: a single guest has
//! printed every number once, and two guests print the same numbers.

use std::fs;

use crate::pod::{MOUNT, Pod};

/// Name of the guest's domain.
pub(crate) const NAME: &str = "default_counter";

/// Size of the firmware in bytes, a multiple of 64 KiB as QEMU requires. The firmware ends at the end of the first MiB.
const FIRMWARE: usize = 64 * 1024;
/// Offset in the firmware at which the processor starts.
const RESET: usize = FIRMWARE - 16;
/// `ljmp $0xf000, $0`
const TO_PROGRAM: [u8; 5] = [0xea, 0x00, 0x00, 0x00, 0xf0];
/// The program of the guest, in the processor's 16-bit mode.
const PROGRAM: [u8; 94] = [
    0xfa, //                               cli
    0x66, 0x31, 0xc0, //                   xor %eax, %eax
    0x8e, 0xd8, //                         mov %ax, %ds
    0x8e, 0xd0, //                         mov %ax, %ss
    0xbc, 0x00, 0x7c, //                   mov $0x7c00, %sp
    0xc7, 0x06, 0x20, 0x00, 0x3f, 0x00, // movw $tick, 0x20         the timer's interrupt is number 8
    0xc7, 0x06, 0x22, 0x00, 0x00, 0xf0, // movw $0xf000, 0x22
    0x66, 0xa3, 0x00, 0x05, //             mov %eax, 0x500          the count
    0xb0, 0x11, 0xe6, 0x20, //             outb $0x11, $0x20        interrupt controller: begin
    0xb0, 0x08, 0xe6, 0x21, //             outb $0x08, $0x21        its first interrupt is number 8
    0xb0, 0x04, 0xe6, 0x21, //             outb $0x04, $0x21
    0xb0, 0x01, 0xe6, 0x21, //             outb $0x01, $0x21
    0xb0, 0xfe, 0xe6, 0x21, //             outb $0xfe, $0x21        none but the timer
    0xb0, 0x34, 0xe6, 0x43, //             outb $0x34, $0x43        timer: again and again
    0xb0, 0x9c, 0xe6, 0x40, //             outb $0x9c, $0x40        every 0x2e9c / 1193182 s
    0xb0, 0x2e, 0xe6, 0x40, //             outb $0x2e, $0x40
    0xfb, //                               sti
    0xf4, //                         idle: hlt
    0xeb, 0xfd, //                         jmp idle
    0x66, 0xff, 0x06, 0x00, 0x05, // tick: incl 0x500
    0xbe, 0x00, 0x05, //                   mov $0x500, %si
    0xb9, 0x04, 0x00, //                   mov $4, %cx
    0xba, 0xfd, 0x03, //             next: mov $0x3fd, %dx          serial port: wait until it can take a byte
    0xec, //                         wait: in %dx, %al
    0xa8, 0x20, //                         test $0x20, %al
    0x74, 0xfb, //                         jz wait
    0xac, //                               lodsb
    0xba, 0xf8, 0x03, //                   mov $0x3f8, %dx
    0xee, //                               out %al, %dx
    0xe2, 0xf1, //                         loop next
    0xb0, 0x20, 0xe6, 0x20, //             outb $0x20, $0x20        interrupt controller: done
    0xcf, //                               iret
];

/// Creates the files that the guest needs in a pod.
pub(crate) fn furnish(pod: &Pod) {
    let mut firmware = vec![0; FIRMWARE];
    firmware[..PROGRAM.len()].copy_from_slice(&PROGRAM);
    firmware[RESET..RESET + TO_PROGRAM.len()].copy_from_slice(&TO_PROGRAM);
    fs::write(pod.scratch.join("firmware"), firmware).unwrap();
    pod.own(&pod.scratch.join("serial"));
}

/// Number of bytes with content in the memory of a large guest.
const FILLED: usize = 48 << 20;

/// Returns the definition of a guest like [`xml`], but with more memory.
///
/// With a limit of 1 MiB per second, sending its memory takes about as many seconds as it has MiB.
pub(crate) fn large_xml(pod: &Pod) -> String {
    let mut filling = Vec::with_capacity(FILLED);
    // No two pages are equal, and no page is empty.
    let mut number = 1_u32;
    while filling.len() < FILLED {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        filling.extend(number.to_le_bytes());
    }
    fs::write(pod.scratch.join("filling"), filling).unwrap();
    xml()
        .replace(
            "<domain type='qemu'>",
            "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>",
        )
        .replace("<memory unit='MiB'>16<", "<memory unit='MiB'>64<")
        .replace(
            "</domain>",
            &format!(
                "<qemu:commandline><qemu:arg value='-device'/>\
                 <qemu:arg value='loader,file={MOUNT}/filling,addr=0x200000,force-raw=on'/></qemu:commandline></domain>"
            ),
        )
}

/// Returns the definition of the guest.
///
/// Without a local APIC, the timer's interrupts reach the processor directly. The buses of newer machines need a local
/// APIC.
pub(crate) fn xml() -> String {
    format!(
        "<domain type='qemu'>
  <name>{NAME}</name>
  <uuid>b6ad2f5c-3f7a-4f8e-9c2e-51d0a77c0e02</uuid>
  <memory unit='MiB'>16</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <loader readonly='yes' type='rom'>{MOUNT}/firmware</loader>
  </os>
  <cpu mode='custom' match='exact' check='none'>
    <model fallback='forbid'>Westmere</model>
    <feature policy='disable' name='apic'/>
  </cpu>
  <devices>
    <controller type='usb' model='none'/>
    <serial type='file'><source path='{MOUNT}/serial/numbers'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>"
    )
}

/// Output of the guest in one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuestOutput(Vec<u8>);

impl GuestOutput {
    /// Returns the output in a pod so far.
    pub(crate) fn in_pod(pod: &Pod) -> Self {
        Self(fs::read(pod.scratch.join("serial/numbers")).unwrap_or_default())
    }

    /// Removes the output in a pod, for another guest.
    pub(crate) fn forget(pod: &Pod) {
        let _ = fs::remove_file(pod.scratch.join("serial/numbers"));
    }

    /// Returns whether the guest has never run in the pod.
    pub(crate) fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the length of the output in bytes.
    pub(crate) fn length(&self) -> usize {
        self.0.len()
    }

    /// Returns the last number of a single guest that ran first in this pod and then in the pod of `there`.
    ///
    /// A number may be split between the two outputs.
    ///
    /// # Panics
    /// If a number is missing or repeated.
    pub(crate) fn and_then(&self, there: &Self) -> u32 {
        let bytes: Vec<u8> = self.0.iter().chain(&there.0).copied().collect();
        let output = numbers(&bytes);
        for (index, number) in output.iter().enumerate() {
            assert_eq!(
                usize::try_from(*number).unwrap(),
                index + 1,
                "{} bytes here, {} there",
                self.0.len(),
                there.0.len()
            );
        }
        output.last().copied().unwrap_or_default()
    }

    /// Returns the number of values that are in both outputs. Only two guests can print the same value.
    pub(crate) fn duplicates_in(&self, there: &Self) -> usize {
        let here = numbers(&self.0);
        // The first number in the output `there` may have been started in this output.
        let begun = (0..4).map(|skipped| there.0.get(skipped..).unwrap_or_default());
        let both = begun.map(|bytes| numbers(bytes).iter().filter(|number| here.contains(number)).count());
        both.max().unwrap_or_default()
    }
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    let (numbers, _) = bytes.as_chunks();
    numbers.iter().map(|number| u32::from_le_bytes(*number)).collect()
}
