//! A guest without an operating system: it counts on its console and obeys the power button.
//!
//! The BIOS starts it, which saves an emulated processor the four seconds that Linux takes. Nothing else is in it: no
//! network, no disk, no login.
//!
//! The lines are those of the guest with Linux: `tick N boot=... up=... late=...ms`. Ports and registers are those of the
//! machines that QEMU emulates: UART 16550 (COM1), interrupt controller 8259, timer 8254, clock MC146818, and ACPI's
//! fixed hardware (ACPI specification 6.5, 4.8.3).

#![no_std]
#![no_main]

use core::{
    arch::{asm, global_asm, x86_64::_rdtsc},
    fmt::{self, Write},
    panic::PanicInfo,
    ptr::{addr_of, addr_of_mut, with_exposed_provenance},
};

// From the BIOS (16 bits, at 0x7c00) directly to 64 bits. SeaBIOS has enabled line A20. The tables map the first 4 GiB
// to themselves, in pages of 2 MiB.
global_asm!(
    r#"
    .section .boot, "awx"
    .code16
    .global boot
boot:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw $0x7c00, %sp
    movw $packet, %si
    movb $0x42, %ah
    int $0x13
    jc stopped
    lgdt descriptors_pointer
    movl %cr4, %eax
    orl $0x620, %eax
    movl %eax, %cr4
    movl $pages, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl %cr0, %eax
    andl $0xfffffffb, %eax
    orl $0x80000003, %eax
    movl %eax, %cr0
    ljmp $8, $in_64_bits
stopped:
    hlt
    jmp stopped

    .code64
in_64_bits:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movl $0x7c00, %esp
    call run

    .balign 8
descriptors:
    .quad 0, 0x00af9a000000ffff, 0x00cf92000000ffff
descriptors_pointer:
    .word descriptors_pointer - descriptors - 1
    .long descriptors
    // What the BIOS is to read: a count of sectors, where to, and from which.
packet:
    .byte 16, 0
    .word sectors, 0, 0x7e00 >> 4
    .quad 1
    .org boot + 510
    .word 0xaa55

    .section .text.interrupts, "ax"
    .global interrupted_by_timer
interrupted_by_timer:
    pushq %rax
    incq PERIODS(%rip)
    movb $0x20, %al
    outb %al, $0x20
    popq %rax
    iretq
    .global interrupted
interrupted:
    iretq

    .section .tables, "aw"
pages:
    .quad pages_of_512_gib + 3
    .fill 511, 8, 0
pages_of_512_gib:
    .quad pages_of_1_gib + 3, pages_of_1_gib + 0x1003, pages_of_1_gib + 0x2003, pages_of_1_gib + 0x3003
    .fill 508, 8, 0
pages_of_1_gib:
    .set number, 0
    .rept 2048
    .quad (number << 21) + 0x83
    .set number, number + 1
    .endr
"#,
    options(att_syntax)
);

unsafe extern "C" {
    fn interrupted();
    fn interrupted_by_timer();
}

/// Periods of the timer so far: written by its interrupt, which comes only in `wait`.
#[unsafe(no_mangle)]
static mut PERIODS: u64 = 0;

/// Time between two interrupts of the timer.
const PERIOD_MILLIS: u64 = 50;
/// Periods between two ticks.
const EVERY: u64 = 4;
/// The timer counts 1,193,182 times a second.
const TIMER: u32 = 1_193_182 / (1000 / PERIOD_MILLIS as u32);

unsafe fn write_8(port: u16, value: u8) {
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) }
}

unsafe fn read_8(port: u16) -> u8 {
    let value;
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack)) }
    value
}

unsafe fn write_16(port: u16, value: u16) {
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nomem, nostack)) }
}

unsafe fn read_16(port: u16) -> u16 {
    let value;
    unsafe { asm!("in ax, dx", in("dx") port, out("ax") value, options(nomem, nostack)) }
    value
}

/// COM1.
struct Console;

impl Console {
    const PORT: u16 = 0x3f8;

    /// 115,200 baud, 8 bits, with queues.
    unsafe fn new() -> Self {
        for (register, value) in [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 7), (4, 3)] {
            unsafe { write_8(Self::PORT + register, value) }
        }
        Self
    }
}

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            unsafe {
                while read_8(Self::PORT + 5) & 0x20 == 0 {}
                write_8(Self::PORT, byte);
            }
        }
        Ok(())
    }
}

/// Lets the timer, and only it, interrupt `wait`.
unsafe fn start_timer() {
    #[repr(C, packed)]
    struct Pointer(u16, u64);
    static mut HANDLERS: [[u64; 2]; 256] = [[0; 2]; 256];
    for number in 0..256 {
        let handler = if number == 0x20 {
            interrupted_by_timer as *const ()
        } else {
            interrupted as *const ()
        } as u64;
        // An interrupt gate of the code segment, in the first 64 KiB.
        unsafe { HANDLERS[number] = [(handler & 0xffff) | (8 << 16) | (0x8e00 << 32), 0] }
    }
    unsafe {
        let pointer = Pointer(4095, addr_of!(HANDLERS) as u64);
        asm!("lidt [{}]", in(reg) &pointer, options(nostack));
        // Interrupts 0-7 become 0x20-0x27, 8-15 become 0x28-0x2f, and all but the timer's are masked.
        for (port, value) in [
            (0x20, 0x11),
            (0xa0, 0x11),
            (0x21, 0x20),
            (0xa1, 0x28),
            (0x21, 4),
            (0xa1, 2),
            (0x21, 1),
            (0xa1, 1),
        ] {
            write_8(port, value);
        }
        write_8(0x21, 0xfe);
        write_8(0xa1, 0xff);
        write_8(0x43, 0x34);
        write_8(0x40, TIMER as u8);
        write_8(0x40, (TIMER >> 8) as u8);
    }
}

/// Waits for the timer; returns the number of its periods so far.
unsafe fn wait() -> u64 {
    unsafe {
        // The interrupt's frame must not lie where a function keeps values below the stack pointer.
        asm!("sub rsp, 256", "sti", "hlt", "cli", "add rsp, 256");
        addr_of_mut!(PERIODS).read_volatile()
    }
}

/// The registers of ACPI's power button and sleep states.
struct Power {
    /// PM1a_EVT_BLK: the status bits, followed by the enable bits.
    events: u16,
    /// PM1a_CNT_BLK.
    control: u16,
}

impl Power {
    /// PWRBTN_STS and PWRBTN_EN.
    const BUTTON: u16 = 1 << 8;
    /// SLP_EN with SLP_TYP 0, which is S5 on QEMU's machines (`_S5` in their DSDT).
    const OFF: u16 = 1 << 13;

    /// Finds the registers by the table FADT, and takes over from the firmware.
    unsafe fn find() -> Option<Self> {
        unsafe {
            let root = (0xe_0000..0x10_0000)
                .step_by(16)
                .find(|&place| &read::<[u8; 8]>(place) == b"RSD PTR ")?;
            let tables = read::<u32>(root + 16) as usize;
            let end = tables + read::<u32>(tables + 4) as usize;
            let mut all = (tables + 36..end).step_by(4).map(|entry| read::<u32>(entry) as usize);
            let fixed = all.find(|&table| &read::<[u8; 4]>(table) == b"FACP")?;
            let power = Self {
                events: read(fixed + 56),
                control: read(fixed + 64),
            };
            let (command, enable) = (read::<u16>(fixed + 48), read::<u8>(fixed + 52));
            if command != 0 {
                write_8(command, enable);
            }
            write_16(power.events + 2, Self::BUTTON);
            Some(power)
        }
    }

    unsafe fn is_pressed(&self) -> bool {
        unsafe { read_16(self.events) & Self::BUTTON != 0 }
    }

    unsafe fn off(&self) {
        unsafe { write_16(self.control, Self::OFF | 1) }
    }
}

/// Reads from a physical address.
unsafe fn read<T>(place: usize) -> T {
    unsafe { with_exposed_provenance::<T>(place).read_unaligned() }
}

/// A number of this boot that no other has: of the time of day, and of the time that the machine has run so far.
unsafe fn boot_number() -> u32 {
    let mut number = 0x811c_9dc5_u32;
    let mut mix = |byte: u8| number = (number ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    unsafe {
        for register in [0, 2, 4, 7, 8] {
            write_8(0x70, register);
            mix(read_8(0x71));
        }
        _rdtsc().to_le_bytes().into_iter().for_each(mix);
    }
    number
}

#[unsafe(no_mangle)]
unsafe extern "C" fn run() -> ! {
    unsafe {
        let mut console = Console::new();
        let (power, boot) = (Power::find(), boot_number());
        start_timer();
        let _ = writeln!(console, "drydock-guest ready boot={boot:08x} data=none");
        let (mut number, mut due) = (1_u64, 1);
        loop {
            let now = wait();
            let (seconds, millis) = (now * PERIOD_MILLIS / 1000, now * PERIOD_MILLIS % 1000);
            if let Some(power) = power.as_ref().filter(|power| power.is_pressed()) {
                let _ = writeln!(console, "drydock-guest power off up={seconds}.{millis:03}s");
                power.off();
            }
            if now >= due {
                let late = (now - due) * PERIOD_MILLIS;
                let _ = writeln!(
                    console,
                    "tick {number} boot={boot:08x} up={seconds}.{millis:03} late={late}ms"
                );
                number += 1;
                // Times missed in a standstill are not caught up in a burst.
                due = if now - due > EVERY { now } else { due } + EVERY;
            }
        }
    }
}

#[panic_handler]
fn panicked(_: &PanicInfo) -> ! {
    loop {
        unsafe { asm!("cli", "hlt") }
    }
}

/// A function of the C library that the compiler requires.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    unsafe { asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") bytes => _) }
    to
}

/// See `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    unsafe { asm!("rep stosb", inout("rdi") to => _, in("al") value as u8, inout("rcx") bytes => _) }
    to
}

/// Named by the tables with which the core library would unwind; nothing here does.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
