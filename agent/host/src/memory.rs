//! Release of unused memory.

/// Returns freed memory to the kernel.
///
/// An inspection's report and the decisions based on it leave the heap larger than an idle agent needs, and glibc does
/// not shrink the heap by itself.
#[expect(unsafe_code, reason = "glibc's malloc_trim has no safe form")]
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes no pointers, locks the heap itself and may be called by any thread at any time.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn freed_memory_goes_back() {
        let anonymous = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        // glibc does not return these small allocations by itself while the last allocation is alive.
        let mut pieces: Vec<Vec<u8>> = (0..400_000).map(|_| vec![1; 100]).collect();
        let full = anonymous();
        let last = pieces.pop();
        drop(pieces);
        super::trim();
        assert!(
            anonymous() + 20_000 < full,
            "{} of {full} KiB are still held",
            anonymous()
        );
        drop(last);
    }
}
