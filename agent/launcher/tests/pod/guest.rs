//! A guest that fits in a boot sector.
//!
//! The guest writes to its serial port, prints ticks, and reacts to its power button. The guest needs no kernel and
//! boots in half a second without KVM.

/// Machine code of the guest, loaded at 0x7c00. The texts follow: `tick`, `bye`, and the greeting.
#[rustfmt::skip]
const CODE: [u8; 79] = [
    0x31, 0xc0,             // 00       xor ax, ax
    0x8e, 0xd8,             // 02       mov ds, ax
    0xbe, 0x5c, 0x7c,       // 04       mov si, HELLO
    0xe8, 0x2d, 0x00,       // 07       call PRINT
    0xba, 0x02, 0x06,       // 0a       mov dx, 0x602       the ACPI register of enabled events
    0xb8, 0x00, 0x01,       // 0d       mov ax, 0x100       the power button's
    0xef,                   // 10       out dx, ax
    0xfb,                   // 11       sti
    0xf4,                   // 12 WAIT: hlt                 the timer wakes it 18 times a second
    0x43,                   // 13       inc bx
    0xf6, 0xc3, 0x0f,       // 14       test bl, 15
    0x75, 0x06,             // 17       jnz BUTTON
    0xbe, 0x4f, 0x7c,       // 19       mov si, TICK
    0xe8, 0x18, 0x00,       // 1c       call PRINT
    0xba, 0x00, 0x06,       // 1f BUTTON: mov dx, 0x600     the register of pending events
    0xed,                   // 22       in ax, dx
    0xf6, 0xc4, 0x01,       // 23       test ah, 1
    0x74, 0xea,             // 26       jz WAIT
    0xbe, 0x56, 0x7c,       // 28       mov si, BYE
    0xe8, 0x09, 0x00,       // 2b       call PRINT
    0xba, 0x04, 0x06,       // 2e       mov dx, 0x604       the power register
    0xb8, 0x00, 0x20,       // 31       mov ax, 0x2000      off
    0xef,                   // 34       out dx, ax
    0xeb, 0xdb,             // 35       jmp WAIT
    0xac,                   // 37 PRINT: lodsb
    0x84, 0xc0,             // 38       test al, al
    0x74, 0x12,             // 3a       jz DONE
    0x88, 0xc4,             // 3c       mov ah, al
    0xba, 0xfd, 0x03,       // 3e FULL: mov dx, 0x3fd       the serial port's status
    0xec,                   // 41       in al, dx
    0xa8, 0x20,             // 42       test al, 0x20       ready for the next character
    0x74, 0xf8,             // 44       jz FULL
    0xba, 0xf8, 0x03,       // 46       mov dx, 0x3f8
    0x88, 0xe0,             // 49       mov al, ah
    0xee,                   // 4b       out dx, al
    0xeb, 0xe9,             // 4c       jmp PRINT
    0xc3,                   // 4e DONE: ret
];
/// Offset in the code of the mask of enabled events.
const EVENTS: usize = 0x0f;

/// Behaviour of a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// Greeting that the guest prints first.
    pub(crate) hello: &'static str,
    /// Whether the guest reacts to its power button.
    pub(crate) reads_console: bool,
}

/// Returns the disk of the guest.
pub(crate) fn disk(manners: Manners) -> Vec<u8> {
    let mut code = CODE;
    if !manners.reads_console {
        code[EVENTS] = 0;
    }
    let mut disk = [&code[..], b"tick\r\n\0bye\r\n\0", manners.hello.as_bytes(), b"\0"].concat();
    assert!(disk.len() <= 510, "it is one sector");
    disk.resize(510, 0);
    disk.extend([0x55, 0xaa]);
    disk.resize(1 << 20, 0);
    disk
}
