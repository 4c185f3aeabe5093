"""Reference pages: parsing of the source, completeness, and equality of committed and generated pages."""

import unittest

from verify import reference
from verify.reference import events, flags, metrics, names, reasons, source

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
        let values = [("process_cpu_seconds", "CPU time", ProcessMetricType::Counter, 1)];
    }
}

fn encode(encoder: &mut Encoder) {
    let help = "Slots";
    encoder.encode_descriptor("drydock_slots", help, None, MetricType::Gauge);
    let help = "Their limit";
    encoder.encode_descriptor("drydock_slots_limit", help, None, MetricType::Gauge);
}

#[cfg(test)]
mod tests {
    const NONE: (&str, &str) = ("drydock_not_one", "of a test");
}
'''

FLAGS = '''
use drydock_core::{
    minimum::DEFAULT_MODEL,
    selection::{NAMESPACES, select},
};

const HERE: &str = "/here";

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
    /// Internal.
    #[arg(long, hide = true)]
    cache: Option<PathBuf>,
    /// Its model.
    #[arg(long, default_value = DEFAULT_MODEL)]
    model: String,
    /// Its namespaces.
    #[arg(long, value_delimiter = ',', default_values_t = NAMESPACES.map(str::to_owned))]
    namespaces: Vec<String>,
    /// Its namespace.
    #[arg(long, default_value = drydock_api::NAMESPACE)]
    namespace: String,
    /// Its folder.
    #[arg(long, default_value = HERE)]
    folder: PathBuf,
    /// Its mask.
    #[arg(long, default_value = "", value_parser = mask)]
    mask: Mask,
    /// Its node.
    #[arg(long, env = "NODE")]
    node: String,
    /// Its peers.
    #[arg(long)]
    peers: Vec<String>,
    /// Its port.
    #[arg(long, default_value_t = 9446)]
    port: u16,
}
'''

# Modules that declare constants for default values, by path.
MODULES = {
    ("drydock_api",): 'pub const NAMESPACE: &str = "drydock";',
    ("drydock_core", "minimum"): 'pub const DEFAULT_MODEL: &str =\n    "Penryn";',
    ("drydock_core", "selection"): 'pub const NAMESPACES: [&str; 2] = [\n    drydock_api::NAMESPACE,\n    "kubevirt",\n];',
}


REASONS = '''
pub mod types {
    /// Condition of a node: it is [`Ready`](types::READY).
    pub const READY: &str = "Ready";
}

/// Reason of a pod
/// that waits: its time has not come.
///
/// More.
#[allow(dead_code)]
pub(crate) const WAITS: &'static str = "Waits";
const PLAIN: &str = "Plain";
const NUMBER: u32 = 1;

/// Why.
#[derive(Debug, Error)]
pub enum Why {
    /// It is not { there.
    #[error("gone: {}", .0.name())]
    Gone(String),
    /// Too much.
    ///
    /// If several are, `amount` is the largest.
    Much {
        /// How much.
        amount: u64,
    },
    /// Too much here.
    MuchHere,
    Bare,
    /// It waits.
    Waiting,
}

impl Why {
    fn quote(&self) -> char {
        '"'
    }

    /// Returns the reason. { "
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Gone(_) => "Gone",
            Self::Much { .. } | Self::MuchHere => "TooMuch",
            Self::Waiting => WAITS,
            Self::Bare => other.reason(),
        }
    }

    fn has_reason(&self) -> bool {
        true
    }
}

pub fn state_reason(state: State) -> &'static str {
    match state {
        State::Good => "Good",
    }
}

#[cfg(test)]
mod tests {
    fn reason() -> &'static str {
        "OfATest"
    }
}
'''

EVENTS = '''
fn f() {
    self.events.record(
        &object,
        Severity::Normal,
        "Made",
        note,
    );
    publish_event(&events, &object, Severity::Warning, FAILED, note);
    record_event(events, migration, Severity::Normal, action.reason, note);
    let (severity, reason) = (Severity::Warning, "Tuple");
    events.publish(Event { severity: Severity::Warning, reason: FAILED.into(), action: "Watch".into() });
    events.push(Event {
        warning: true,
        reason: refusal.reason(),
    });
    Self::on_maintenance(false, "Begun", "begun");
    events.push(warning(
        events::REFUSED,
        text,
    ));
}
'''


class Metrics(unittest.TestCase):
    def test_metrics_have_names_types_and_labels_of_a_scrape(self) -> None:
        self.assertEqual(
            list(metrics.metrics(METRICS)),
            [
                metrics.Metric("drydock_requests_total", "counter", ("node", "kind"), "What came"),
                metrics.Metric("drydock_wait_seconds", "histogram", (), "How long | it took"),
                metrics.Metric("kubevirt_left", "gauge", ("node", "kind"), "What is left"),
                metrics.Metric("drydock_failures_total", "counter", (), "What failed"),
                metrics.Metric("process_cpu_seconds_total", "counter", (), "CPU time"),
                metrics.Metric("drydock_slots", "gauge", (), "Slots"),
                metrics.Metric("drydock_slots_limit", "gauge", (), "Their limit"),
            ],
        )

    def test_metric_without_a_type_is_an_error(self) -> None:
        with self.assertRaisesRegex(ValueError, "drydock_left: the source does not show the type"):
            list(metrics.metrics('registry.register("drydock_left", "What is left", unknown.clone());'))

    def test_text_cannot_end_a_cell(self) -> None:
        page = metrics.page([("All", metrics.metrics(METRICS))])
        self.assertIn("| `drydock_wait_seconds` | histogram |  | How long \\| it took |", page)


class Flags(unittest.TestCase):
    def test_flags_have_defaults_and_those_of_structs_within(self) -> None:
        run, dry = flags.commands(FLAGS, MODULES.__getitem__)
        self.assertEqual((run.name, run.meaning), ("run", "Run it."))
        self.assertEqual(
            run.flags,
            [
                flags.Flag("--place FOLDER", "Where, or elsewhere.", "/a", "WHERE"),
                flags.Flag("--quiet-ly", "Quietly."),
            ],
        )
        self.assertEqual(dry.name, "dry-run")
        first = [flags.Flag("FILE", "What.", required=True), flags.Flag("--output OUTPUT", "How.", "text")]
        self.assertEqual(dry.flags[:2], first)

    def test_defaults_that_are_constants_have_the_values(self) -> None:
        _, dry = flags.commands(FLAGS, MODULES.__getitem__)
        defaults = {flag.name.split()[0]: flag.default for flag in dry.flags if flag.default}
        self.assertEqual(
            defaults,
            {
                "--output": "text",
                "--model": "Penryn",
                "--namespaces": "drydock,kubevirt",
                "--namespace": "drydock",
                "--folder": "/here",
                "--port": "9446",
            },
        )

    def test_constant_that_is_not_found_is_an_error(self) -> None:
        modules = {**MODULES, ("drydock_api",): ""}
        with self.assertRaisesRegex(ValueError, "drydock_api::NAMESPACE"):
            list(flags.commands(FLAGS, modules.__getitem__))

    def test_hidden_flags_are_omitted_and_required_ones_marked(self) -> None:
        _, dry = flags.commands(FLAGS, MODULES.__getitem__)
        self.assertNotIn("--cache", " ".join(flag.name for flag in dry.flags))
        self.assertEqual([flag.name for flag in dry.flags if flag.required], ["FILE", "--node NODE"])
        self.assertIn("| `--node NODE` | required | `NODE` | Its node. |", flags.page([("a", [dry])]))


class Source(unittest.TestCase):
    def test_constants_have_modules_values_and_meanings(self) -> None:
        self.assertEqual(
            source.constants(REASONS),
            {
                "types::READY": source.Constant("Ready", "Condition of a node: it is `Ready`."),
                "WAITS": source.Constant("Waits", "Reason of a pod that waits: its time has not come."),
                "PLAIN": source.Constant("Plain", ""),
            },
        )

    def test_variants_have_the_first_paragraph_of_the_comment(self) -> None:
        found = {"Gone": "It is not { there.", "Much": "Too much.", "MuchHere": "Too much here.", "Bare": "", "Waiting": "It waits."}
        self.assertEqual(source.variants(REASONS, "Why"), found)
        self.assertEqual(source.variants(REASONS, "Other"), {})

    def test_reasons_have_the_variants_that_return_each(self) -> None:
        found = {"Gone": ["Gone"], "TooMuch": ["Much", "MuchHere"], "Waits": ["Waiting"]}
        self.assertEqual(source.arms(REASONS, "Why", "reason"), found)
        self.assertEqual(source.arms(REASONS, "", "state_reason"), {"Good": ["Good"]})

    def test_functions_that_return_a_reason_are_found(self) -> None:
        text = source.without_tests(REASONS)
        self.assertEqual(list(source.reason_functions(text)), ["Why::reason", "state_reason"])
        self.assertIn("reason", list(source.reason_functions(REASONS))[2])

    def test_sources_of_tests_are_left_out(self) -> None:
        found = set(source.files(["controller/core/src"]))
        self.assertIn("controller/core/src/drain/guest_steps.rs", found)
        self.assertNotIn("controller/core/src/drain/tests.rs", found)


class Reasons(unittest.TestCase):
    def test_use_is_left_out_of_a_meaning(self) -> None:
        for comment, meaning in [
            ("Reason of `A`: it waits. KubeVirt's name.", "It waits."),
            ("Condition: the node is empty.", "The node is empty."),
            ("Condition type: an abort was requested. KubeVirt's name.", "An abort was requested."),
            ("The guest: it runs.", "The guest: it runs."),
        ]:
            self.assertEqual(reasons.meaning(comment), meaning)

    def test_strings_in_camel_case_are_found(self) -> None:
        found = reasons.camel_case('f("Waits", "CPUMissing", "two words", "lower", "GET", "A{}", "NotThere")')
        self.assertEqual(found, {"Waits", "CPUMissing", "NotThere"})

    def test_every_function_of_reasons_is_on_the_page_or_internal(self) -> None:
        self.assertEqual(reasons.unlisted_functions(), [])

    def test_every_string_that_could_be_a_reason_is_listed(self) -> None:
        self.assertEqual(reasons.unlisted_strings(), [])

    def test_every_reason_of_the_page_is_in_the_source(self) -> None:
        self.assertEqual(reasons.missing_strings(), [])

    def test_every_condition_type_is_on_the_page(self) -> None:
        declared = [("controller/api/src/reasons.rs", "events"), ("controller/api/src/kubevirt/names.rs", "reasons")]
        of_conditions = {
            f"{file}::{name}"
            for file, other in declared
            for name in source.constants(source.read(file))
            if "::" in name and not name.startswith(f"{other}::")
        }
        shown = {condition.name for kind in reasons.KINDS for condition in kind.conditions}
        self.assertGreater(len(of_conditions), 20)
        self.assertEqual(of_conditions - shown, set())


class Events(unittest.TestCase):
    def test_events_are_found_in_every_form(self) -> None:
        found = {
            ("Normal", '"Made"'),
            ("Warning", "FAILED"),
            ("Normal", "action.reason"),
            ("Warning", '"Tuple"'),
            ("Warning", "refusal.reason()"),
            ("Normal", '"Begun"'),
            ("Warning", "events::REFUSED"),
        }
        self.assertEqual(set(events.recorded(EVENTS)), found)

    def test_every_file_that_records_events_has_an_object(self) -> None:
        self.assertEqual(events.unknown_files(), [])

    def test_the_table_of_events_is_that_of_the_source(self) -> None:
        found = events.found()
        self.assertEqual(found - events.MEANINGS.keys(), set(), "without a meaning")
        self.assertEqual(events.MEANINGS.keys() - found, set(), "not in the source")


class Names(unittest.TestCase):
    def test_keys_are_distinguished_from_other_strings(self) -> None:
        text = 'x("a.kubevirt.io/b", "c.drydock.dev/", "/etc/a.io/b", "kubevirt.io", "no key a.io/b", "v1beta1.Registration/Register")'
        self.assertEqual(names.keys(text), {"a.kubevirt.io/b", "c.drydock.dev/"})

    def test_use_is_left_out_of_a_meaning(self) -> None:
        for comment, meaning in [
            ("Label of a launcher pod: name of its instance.", "Name of its instance."),
            ("Prefix: CPU features.", "CPU features."),
            ("The value `true`: frozen.", "The value `true`: frozen."),
        ]:
            self.assertEqual(names.meaning(comment), meaning)

    def test_every_key_in_the_source_is_on_the_page(self) -> None:
        self.assertEqual(names.found() - names.listed(), set())

    def test_every_key_has_a_meaning(self) -> None:
        rows = [names.row(key) for section in names.KEYS.values() for key in section]
        self.assertEqual([key for key, _, _, meaning in rows if not meaning], [])


class Pages(unittest.TestCase):
    def test_committed_pages_equal_the_generated_pages(self) -> None:
        self.assertEqual(reference.stale(), [])

    def test_every_component_and_program_is_found(self) -> None:
        pages = {path.name: text for path, text in reference.pages().items()}
        for title, _, _ in metrics.COMPONENTS:
            section = pages["metrics.md"].partition(f"## {title}\n")[2].partition("\n## ")[0]
            self.assertGreaterEqual(section.count("\n| `"), 3, title)
        for program, _ in flags.PROGRAMS:
            self.assertIn(f"## {program} run\n", pages["flags.md"])
            self.assertIn("| `--log-level FILTER` | `info` |", pages["flags.md"])
