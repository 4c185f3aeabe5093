"""Reference pages: what is read from the source, and that the committed pages are as they would be written."""

import unittest

from verify import reference

METRICS = '''
#[derive(Clone, EncodeLabelSet)]
struct Of {
    node: String,
    pub(crate) kind: &'static str,
}

type Gauges = Family<Of, Gauge<i64, AtomicI64>>;

pub(crate) struct Metrics {
    requests: Family<Of, Counter>,
    pub(super) duration: Histogram,
    left: Gauges,
}

impl Metrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self { requests: Family::default(), duration: Histogram::new(B), left: Gauges::default() };
        let help = "What came";
        registry.register("drydock_requests", help, metrics.requests.clone());
        registry.register_with_unit(
            "drydock_wait",
            "How long | it \\
             took",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        for (name, help, family) in [("kubevirt_left", "What is left", &self.left)] {}
        let failures = Counter::default();
        registry.register("drydock_failures", "What failed", failures.clone());
        let values = [("process_cpu_seconds", "CPU time", Kind::Counter, 1)];
    }
}

#[cfg(test)]
mod tests {
    const NONE: (&str, &str) = ("drydock_not_one", "of a test");
}
'''

FLAGS = '''
#[derive(Debug, Subcommand)]
enum Command {
    /// Run it.
    ///
    /// For long.
    Run(Box<RunArgs>),
    /// Look at it.
    DryRun(DryRunArgs),
}

pub(crate) struct RunArgs {
    /// Where, or
    /// elsewhere.
    #[arg(long, value_name = "FOLDER", default_value = "/a", env = "WHERE")]
    pub(crate) place: PathBuf,
    #[command(flatten)]
    pub(crate) common: Common,
}

pub(crate) struct Common {
    /// Quietly.
    #[arg(
        long = "quiet-ly",
        value_parser = clap::value_parser!(u64).range(1..=9)
    )]
    pub(crate) quiet: bool,
}

struct DryRunArgs {
    /// What.
    #[arg(value_name = "FILE")]
    path: PathBuf,
    /// How.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}
'''


class Metrics(unittest.TestCase):
    def test_metrics_have_the_names_and_labels_of_a_scrape(self) -> None:
        self.assertEqual(
            list(reference.metrics(METRICS)),
            [
                reference.Metric("drydock_requests_total", ("node", "kind"), "What came"),
                reference.Metric("drydock_wait_seconds", (), "How long | it took"),
                reference.Metric("kubevirt_left", ("node", "kind"), "What is left"),
                reference.Metric("drydock_failures_total", (), "What failed"),
                reference.Metric("process_cpu_seconds_total", (), "CPU time"),
            ],
        )

    def test_text_cannot_end_a_cell(self) -> None:
        page = reference.metrics_page([("All", reference.metrics(METRICS))])
        self.assertIn("| `drydock_wait_seconds` |  | How long \\| it took |", page)


class Flags(unittest.TestCase):
    def test_flags_have_defaults_and_those_of_structs_within(self) -> None:
        run, dry = reference.commands(FLAGS)
        self.assertEqual((run.name, run.meaning), ("run", "Run it."))
        self.assertEqual(
            run.flags,
            [
                reference.Flag("--place FOLDER", "Where, or elsewhere.", "/a", "WHERE"),
                reference.Flag("--quiet-ly", "Quietly."),
            ],
        )
        self.assertEqual(dry.name, "dry-run")
        self.assertEqual(dry.flags, [reference.Flag("FILE", "What."), reference.Flag("--output OUTPUT", "How.", "text")])


class Pages(unittest.TestCase):
    def test_committed_pages_are_as_they_would_be_written(self) -> None:
        self.assertEqual(reference.stale(), [])

    def test_every_component_and_program_is_found(self) -> None:
        pages = {path.name: text for path, text in reference.pages().items()}
        for title, _, _ in reference.COMPONENTS:
            section = pages["metrics.md"].partition(f"## {title}\n")[2].partition("\n## ")[0]
            self.assertGreaterEqual(section.count("\n| `"), 3, title)
        for program, _ in reference.PROGRAMS:
            self.assertIn(f"## {program} run\n", pages["flags.md"])
            self.assertIn("| `--log FILTER` | `info` |", pages["flags.md"])
