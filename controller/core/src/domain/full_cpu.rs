//! The complete CPU of a running guest, for comparison with another node's CPU by that node's libvirt.

use drydock_api::kubevirt::status::GuestCpu;

use super::{element::Element, problem::DomainProblem};

/// Returns the element `cpu` of a guest with exactly this CPU, as `virConnectCompareHypervisorCPU` takes it.
///
/// All features of the guest are required. Features of its model that it lacks are disabled, so that a host may lack
/// them too.
///
/// # Errors
/// If a name has control characters, which no libvirt name has.
pub fn full_cpu(cpu: &GuestCpu) -> Result<String, DomainProblem> {
    let feature = |policy: &'static str| {
        move |name: &String| {
            Element::new("feature")
                .with("policy", policy)
                .with("name", name.as_str())
        }
    };
    let mut element = Element::new("cpu")
        .with("mode", "custom")
        .with("match", "exact")
        .with("check", "full")
        .child(Element::text("model", cpu.model.as_str()).with("fallback", "forbid"));
    if let Some(vendor) = &cpu.vendor {
        element = element.child(Element::text("vendor", vendor.as_str()));
    }
    element
        .children(cpu.required.iter().map(feature("require")))
        .children(cpu.disabled.iter().map(feature("disable")))
        .document()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_cpu_requires_all_but_the_disabled_features() {
        let cpu = GuestCpu {
            model: "Skylake-Client-IBRS".into(),
            vendor: Some("Intel".into()),
            required: vec!["vmx".into(), "ss".into()],
            disabled: vec!["hle".into()],
            ..GuestCpu::default()
        };
        let expected = "<cpu mode=\"custom\" match=\"exact\" check=\"full\">
  <model fallback=\"forbid\">Skylake-Client-IBRS</model>
  <vendor>Intel</vendor>
  <feature policy=\"require\" name=\"vmx\"/>
  <feature policy=\"require\" name=\"ss\"/>
  <feature policy=\"disable\" name=\"hle\"/>
</cpu>
";
        assert_eq!(full_cpu(&cpu).as_deref(), Ok(expected));
    }

    #[test]
    fn names_are_text_and_nothing_else() {
        let mut cpu = GuestCpu {
            model: "</model><model>&".into(),
            required: vec!["'/><feature name=\"".into()],
            ..GuestCpu::default()
        };
        let xml = full_cpu(&cpu).unwrap();
        assert_eq!(xml.matches("<model").count(), 1, "{xml}");
        assert_eq!(xml.matches("<feature").count(), 1, "{xml}");
        assert!(!xml.contains("<vendor"), "{xml}");
        cpu.model = "a\0b".into();
        assert_eq!(full_cpu(&cpu).unwrap_err().reason(), "ControlCharacters");
    }
}
