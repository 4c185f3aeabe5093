//! The human-readable output of `inspect`.

use std::fmt::Write;

use drydock_api::facts::{CpuFacts, CpuModel, KvmFacts, NodeFacts, Usable, VirtType};
use drydock_core::{
    labels::{self, LabelPolicy},
    readiness::{NodeReadiness, kvm_sentence},
};

/// Width at which lists are wrapped, in characters.
const WIDTH: usize = 100;

/// Returns a one-page description of the machine.
pub(crate) fn machine(facts: &NodeFacts, policy: &LabelPolicy, problem: Option<&str>) -> String {
    let mut page = TextPage::default();
    page.row("architecture", &facts.architecture);
    page.row("kernel", &facts.kernel);
    processor(&mut page, &facts.cpu);
    page.row("real time", if facts.real_time { "yes" } else { "no" });
    kvm(&mut page, &facts.kvm);
    let readiness = NodeReadiness::of(Some(facts), policy.use_emulation);
    page.row("virtual machines", readiness.sentence());
    if let Some(problem) = problem {
        page.row("libvirt", problem);
    }
    virtualization(&mut page, facts, policy);
    let labels = labels::desired(facts, policy);
    page.row(
        "labels",
        labels
            .withheld
            .map_or_else(|| labels.labels.len().to_string(), |why| why.sentence().into()),
    );
    page.text
}

fn processor(page: &mut TextPage, cpu: &CpuFacts) {
    page.row("cpu", format!("{} ({})", cpu.brand, cpu.vendor));
    if let (Some(family), Some(model), Some(stepping)) = (cpu.family, cpu.model, cpu.stepping) {
        let microcode = cpu
            .microcode
            .as_ref()
            .map_or_else(String::new, |m| format!(", microcode {m}"));
        page.row(
            "",
            format!("family {family}, model {model}, stepping {stepping}{microcode}"),
        );
    }
    if let Some(bits) = cpu.physical_address_bits {
        page.row(
            "",
            format!("{bits} physical address bits, {} CPUs online", cpu.online.unwrap_or(1)),
        );
    }
    if let Some(tsc) = &cpu.tsc {
        let frequency = tsc
            .frequency_hz
            .map_or_else(|| "unknown frequency".into(), |hz| format!("{hz} Hz"));
        page.row(
            "time stamp counter",
            format!(
                "{frequency}, {}",
                if tsc.invariant { "invariant" } else { "not invariant" }
            ),
        );
    }
    page.row(
        "host is",
        if cpu.hypervisor {
            "a virtual machine"
        } else {
            "a physical machine"
        },
    );
}

fn kvm(page: &mut TextPage, kvm: &KvmFacts) {
    let state = if kvm.message.is_empty() {
        kvm_sentence(kvm.state)
    } else {
        &kvm.message
    };
    page.row("KVM", state);
    // The JSON has all parameters; this table has the parameters that are usually needed.
    let relevant = [
        "nested",
        "ept",
        "npt",
        "enable_apicv",
        "avic",
        "sev",
        "sev_es",
        "sev_snp",
        "tdx",
    ];
    let parameters: Vec<String> = (kvm.parameters.iter())
        .filter(|(name, _)| name.rsplit('.').next().is_some_and(|name| relevant.contains(&name)))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    page.list("KVM parameters", &parameters);
    if !kvm.hyperv.is_empty() {
        page.list("Hyper-V", &kvm.hyperv);
    }
}

fn virtualization(page: &mut TextPage, facts: &NodeFacts, policy: &LabelPolicy) {
    let Some(virtualization) = &facts.virtualization else {
        return;
    };
    let how = match virtualization.virt_type {
        VirtType::Kvm => "with KVM",
        VirtType::Qemu => "by emulation",
        VirtType::Unknown => "with an unknown virtualization type",
    };
    page.row("guests", format!("{how}, machine {}", virtualization.machine));
    page.row(
        "",
        format!(
            "libvirt {}, QEMU {}",
            virtualization.libvirt_version, virtualization.qemu_version
        ),
    );
    if let Some(host_model) = &virtualization.host_model {
        page.row("host-model", format!("{} ({})", host_model.name, virtualization.vendor));
        page.list("  with features", &host_model.required);
        page.list("  without features", &host_model.disabled);
    }
    let usable: Vec<&CpuModel> = virtualization
        .models
        .iter()
        .filter(|m| m.usable != Usable::No)
        .collect();
    page.row(
        "CPU models",
        format!(
            "{} of {} usable; --models lists them",
            usable.len(),
            virtualization.models.len()
        ),
    );
    let current: Vec<String> = drydock_core::aliases::published(&usable, policy.aliases)
        .into_iter()
        .filter(|name| !policy.obsolete.covers(name, &virtualization.models))
        .map(str::to_owned)
        .collect();
    page.list("  not obsolete", &current);
    page.list("CPU features", &virtualization.features);
    if let Some(topology) = &virtualization.topology {
        page.row(
            "topology",
            format!(
                "{} sockets, {} cores each, {} threads each, {} NUMA cells",
                topology.sockets, topology.cores, topology.threads, topology.numa_cells
            ),
        );
    }
    let machines: Vec<String> = virtualization
        .machine_types
        .iter()
        .map(|machine| machine.name.clone())
        .collect();
    page.list("machine types", &machines);
    let confidential = &virtualization.confidential;
    let sev_es = confidential.sev.as_ref().is_some_and(|sev| sev.max_es_guests > 0);
    let kinds = [
        ("SEV", confidential.sev.is_some()),
        ("SEV-ES", sev_es),
        ("SEV-SNP", confidential.sev_snp),
        ("TDX", confidential.tdx),
        ("Secure Execution", confidential.secure_execution),
    ];
    let supported: Vec<String> = kinds
        .iter()
        .filter(|(_, yes)| *yes)
        .map(|(name, _)| (*name).to_owned())
        .collect();
    page.row(
        "confidential",
        if supported.is_empty() {
            "none".into()
        } else {
            supported.join(", ")
        },
    );
}

/// Returns all CPU models, one per line.
pub(crate) fn models(facts: &NodeFacts, policy: &LabelPolicy) -> String {
    let Some(virtualization) = &facts.virtualization else {
        return String::new();
    };
    let width = virtualization
        .models
        .iter()
        .map(|model| model.name.len())
        .max()
        .unwrap_or(0);
    let mut text = format!("{:width$}  USABLE   OBSOLETE  MISSING\n", "MODEL");
    for model in virtualization.models.iter() {
        let usable = match model.usable {
            Usable::Yes => "yes",
            Usable::No => "no",
            Usable::Unknown => "unknown",
        };
        let obsolete = if policy.obsolete.covers(&model.name, &virtualization.models) {
            "yes"
        } else {
            "no"
        };
        let line = format!(
            "{:width$}  {usable:7}  {obsolete:8}  {}",
            model.name,
            model.blockers.join(" ")
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Rows of a name and a text.
#[derive(Default)]
struct TextPage {
    text: String,
}

impl TextPage {
    fn row(&mut self, name: &str, text: impl AsRef<str>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{:20}{}", name, text.as_ref());
    }

    fn list(&mut self, name: &str, items: &[String]) {
        if items.is_empty() {
            return;
        }
        let mut line = String::new();
        let mut name = name;
        for item in items {
            if !line.is_empty() && line.len() + item.len() + 1 > WIDTH - 20 {
                self.row(name, &line);
                (name, line) = ("", String::new());
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(item);
        }
        self.row(name, line);
    }
}
