//! Hypervisor CPU baseline with its features expanded: every feature that a guest on this host can have.
//!
//! As in KubeVirt's node-labeller, the architecture determines the relevant elements: on amd64, the policy must be
//! `require`. On s390x, libvirt writes no policy.

use crate::{
    architecture::Architecture,
    document::{ParseError, Reading, children},
};

/// A CPU baseline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    /// Feature names, sorted, without duplicates.
    pub features: Vec<String>,
}

/// Parses the `<cpu>` element that `virConnectBaselineHypervisorCPU` returns.
///
/// # Errors
/// If the text is not a CPU baseline or exceeds the bounds.
pub fn parse(text: &str, architecture: &Architecture) -> Result<Baseline, ParseError> {
    Reading::parse("the CPU baseline", "cpu", text, |reading, cpu| {
        let mut features = Vec::new();
        for feature in children(cpu, "feature") {
            if !architecture.feature_is_required(feature.attribute("policy")) {
                continue;
            }
            if let Some(name) = reading.attribute("feature", feature, "name")? {
                reading.push("feature", &mut features, name)?;
            }
        }
        features.sort_unstable();
        features.dedup();
        Ok(Baseline { features })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_required_features_count() {
        let text = "<cpu><model>x</model><feature policy='require' name='b'/><feature policy='disable' name='c'/>
            <feature name='a'/><feature policy='require' name='b'/><feature policy='require'/></cpu>";
        for (architecture, expected) in [
            (Architecture::Amd64, vec!["b"]),
            (Architecture::S390x, vec!["a", "b"]),
            (Architecture::Arm64, vec!["b"]),
        ] {
            assert_eq!(
                parse(text, &architecture).unwrap().features,
                expected,
                "{architecture:?}"
            );
        }
    }

    #[test]
    fn another_document_is_refused() {
        assert!(matches!(
            parse("<capabilities/>", &Architecture::Amd64),
            Err(ParseError::WrongRoot { .. })
        ));
    }
}
