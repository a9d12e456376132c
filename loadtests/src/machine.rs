//! The machine of a measurement.

use std::fs;

use serde::Serialize;

/// Hardware and kernel, for the interpretation of measurements.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) last_level_cache_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
}

/// Assumed cache size if the kernel does not report it.
const CACHE_BYTES: u64 = 32 << 20;

impl Machine {
    /// Reads the properties of this machine.
    pub(crate) fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            last_level_cache_bytes: last_level_cache().unwrap_or(CACHE_BYTES),
            memory_bytes: kib << 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {} cores, {} MiB last-level cache, {:.0} GiB memory, Linux {}",
            self.cpu,
            self.cores,
            self.last_level_cache_bytes >> 20,
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.kernel
        )
    }
}

/// Size of the largest cache of the first core.
fn last_level_cache() -> Option<u64> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = caches.filter_map(|cache| {
        let text = fs::read_to_string(cache.ok()?.path().join("size")).ok()?;
        cache_size(text.trim())
    });
    sizes.max()
}

/// Parses a size such as `32768K`.
fn cache_size(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let shift = match unit {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].parse::<u64>().ok().map(|size| size << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_sizes_have_units() {
        assert_eq!(cache_size("32768K"), Some(32 << 20));
        assert_eq!(cache_size("1M"), Some(1 << 20));
        assert_eq!(cache_size("512"), Some(512));
        assert_eq!(cache_size("many"), None);
    }
}
