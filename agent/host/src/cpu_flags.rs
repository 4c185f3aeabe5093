//! CPU features by the kernel's names, with their position in cpuid.
//!
//! The names are the names in `/proc/cpuinfo` (the kernel's `cpufeatures.h`). Flags that the kernel defines itself
//! (`constant_tsc`, `rep_good`, ...) are not properties of the processor and are not listed.

/// Register that contains the bit of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    /// EAX.
    Eax,
    /// EBX.
    Ebx,
    /// ECX.
    Ecx,
    /// EDX.
    Edx,
}

/// Features in one register of one leaf.
pub(crate) struct FlagRegister {
    /// Leaf (input EAX).
    pub(crate) leaf: u32,
    /// Sub-leaf (input ECX).
    pub(crate) subleaf: u32,
    /// Output register that contains the bits.
    pub(crate) register: Register,
    /// Bit number and feature name.
    pub(crate) flags: &'static [(u8, &'static str)],
}

/// All known features.
#[rustfmt::skip]
pub(crate) const FLAG_REGISTERS: &[FlagRegister] = &[
    FlagRegister {
        leaf: 0x1, subleaf: 0, register: Register::Edx, flags: &[
            (0, "fpu"), (1, "vme"), (2, "de"), (3, "pse"), (4, "tsc"), (5, "msr"), (6, "pae"), (7, "mce"),
            (8, "cx8"), (9, "apic"), (11, "sep"), (12, "mtrr"), (13, "pge"), (14, "mca"), (15, "cmov"),
            (16, "pat"), (17, "pse36"), (18, "pn"), (19, "clflush"), (21, "dts"), (22, "acpi"), (23, "mmx"),
            (24, "fxsr"), (25, "sse"), (26, "sse2"), (27, "ss"), (28, "ht"), (29, "tm"), (30, "ia64"),
            (31, "pbe"),
        ],
    },
    FlagRegister {
        leaf: 0x1, subleaf: 0, register: Register::Ecx, flags: &[
            (0, "pni"), (1, "pclmulqdq"), (2, "dtes64"), (3, "monitor"), (4, "ds_cpl"), (5, "vmx"), (6, "smx"),
            (7, "est"), (8, "tm2"), (9, "ssse3"), (10, "cid"), (11, "sdbg"), (12, "fma"), (13, "cx16"),
            (14, "xtpr"), (15, "pdcm"), (17, "pcid"), (18, "dca"), (19, "sse4_1"), (20, "sse4_2"),
            (21, "x2apic"), (22, "movbe"), (23, "popcnt"), (24, "tsc_deadline_timer"), (25, "aes"),
            (26, "xsave"), (28, "avx"), (29, "f16c"), (30, "rdrand"), (31, "hypervisor"),
        ],
    },
    FlagRegister {
        leaf: 0x6, subleaf: 0, register: Register::Eax, flags: &[
            (0, "dtherm"), (1, "ida"), (2, "arat"), (4, "pln"), (6, "pts"), (7, "hwp"), (8, "hwp_notify"),
            (9, "hwp_act_window"), (10, "hwp_epp"), (11, "hwp_pkg_req"), (19, "hfi"),
        ],
    },
    FlagRegister {
        leaf: 0x7, subleaf: 0, register: Register::Ebx, flags: &[
            (0, "fsgsbase"), (1, "tsc_adjust"), (2, "sgx"), (3, "bmi1"), (4, "hle"), (5, "avx2"), (7, "smep"),
            (8, "bmi2"), (9, "erms"), (10, "invpcid"), (11, "rtm"), (12, "cqm"), (14, "mpx"), (15, "rdt_a"),
            (16, "avx512f"), (17, "avx512dq"), (18, "rdseed"), (19, "adx"), (20, "smap"), (21, "avx512ifma"),
            (23, "clflushopt"), (24, "clwb"), (25, "intel_pt"), (26, "avx512pf"), (27, "avx512er"),
            (28, "avx512cd"), (29, "sha_ni"), (30, "avx512bw"), (31, "avx512vl"),
        ],
    },
    FlagRegister {
        leaf: 0x7, subleaf: 0, register: Register::Ecx, flags: &[
            (1, "avx512vbmi"), (2, "umip"), (3, "pku"), (4, "ospke"), (5, "waitpkg"), (6, "avx512_vbmi2"),
            (7, "shstk"), (8, "gfni"), (9, "vaes"), (10, "vpclmulqdq"), (11, "avx512_vnni"),
            (12, "avx512_bitalg"), (13, "tme"), (14, "avx512_vpopcntdq"), (16, "la57"), (22, "rdpid"),
            (24, "bus_lock_detect"), (25, "cldemote"), (27, "movdiri"), (28, "movdir64b"), (29, "enqcmd"),
            (30, "sgx_lc"),
        ],
    },
    FlagRegister {
        leaf: 0x7, subleaf: 0, register: Register::Edx, flags: &[
            (2, "avx512_4vnniw"), (3, "avx512_4fmaps"), (4, "fsrm"), (8, "avx512_vp2intersect"),
            (10, "md_clear"), (14, "serialize"), (16, "tsxldtrk"), (18, "pconfig"), (19, "arch_lbr"),
            (20, "ibt"), (22, "amx_bf16"), (23, "avx512_fp16"), (24, "amx_tile"), (25, "amx_int8"),
            (28, "flush_l1d"), (29, "arch_capabilities"),
        ],
    },
    FlagRegister {
        leaf: 0x7, subleaf: 1, register: Register::Eax, flags: &[
            (4, "avx_vnni"), (5, "avx512_bf16"), (26, "lam"),
        ],
    },
    FlagRegister {
        leaf: 0xd, subleaf: 1, register: Register::Eax, flags: &[
            (0, "xsaveopt"), (1, "xsavec"), (2, "xgetbv1"), (3, "xsaves"),
        ],
    },
    FlagRegister {
        leaf: 0x8000_0001, subleaf: 0, register: Register::Edx, flags: &[
            (11, "syscall"), (19, "mp"), (20, "nx"), (22, "mmxext"), (25, "fxsr_opt"), (26, "pdpe1gb"),
            (27, "rdtscp"), (29, "lm"), (30, "3dnowext"), (31, "3dnow"),
        ],
    },
    FlagRegister {
        leaf: 0x8000_0001, subleaf: 0, register: Register::Ecx, flags: &[
            (0, "lahf_lm"), (1, "cmp_legacy"), (2, "svm"), (3, "extapic"), (4, "cr8_legacy"), (5, "abm"),
            (6, "sse4a"), (7, "misalignsse"), (8, "3dnowprefetch"), (9, "osvw"), (10, "ibs"), (11, "xop"),
            (12, "skinit"), (13, "wdt"), (15, "lwp"), (16, "fma4"), (17, "tce"), (19, "nodeid_msr"),
            (21, "tbm"), (22, "topoext"), (23, "perfctr_core"), (24, "perfctr_nb"), (26, "bpext"), (27, "ptsc"),
            (28, "perfctr_llc"), (29, "mwaitx"),
        ],
    },
    FlagRegister {
        leaf: 0x8000_0008, subleaf: 0, register: Register::Ebx, flags: &[
            (0, "clzero"), (1, "irperf"), (2, "xsaveerptr"), (4, "rdpru"), (9, "wbnoinvd"), (23, "amd_ppin"),
            (25, "virt_ssbd"), (27, "cppc"), (31, "brs"),
        ],
    },
    FlagRegister {
        leaf: 0x8000_000a, subleaf: 0, register: Register::Edx, flags: &[
            (0, "npt"), (1, "lbrv"), (2, "svm_lock"), (3, "nrip_save"), (4, "tsc_scale"), (5, "vmcb_clean"),
            (6, "flushbyasid"), (7, "decodeassists"), (10, "pausefilter"), (12, "pfthreshold"), (13, "avic"),
            (15, "v_vmsave_vmload"), (16, "vgif"), (18, "x2avic"), (20, "v_spec_ctrl"), (25, "vnmi"),
        ],
    },
    FlagRegister {
        leaf: 0x8000_001f, subleaf: 0, register: Register::Eax, flags: &[
            (0, "sme"), (1, "sev"), (3, "sev_es"), (4, "sev_snp"), (10, "sme_coherent"), (14, "debug_swap"),
        ],
    },
    FlagRegister {
        leaf: 0x8000_0007, subleaf: 0, register: Register::Ebx, flags: &[
            (0, "overflow_recov"), (1, "succor"), (3, "smca"),
        ],
    },
];
