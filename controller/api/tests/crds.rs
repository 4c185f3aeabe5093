//! The manifests that users apply are the ones this crate describes.

use std::{fs, path::Path};

use drydock_api::definitions;

#[test]
fn committed_definitions_are_current_and_small_enough_for_client_side_apply() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    for crd in definitions() {
        let name = crd.metadata.name.clone().unwrap();
        let current = serde_saphyr::to_string(&crd).unwrap();
        let committed = fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap();
        assert!(
            current == committed,
            "{name} has changed; write it anew: cargo run -p drydock-api --example crds -- deploy/crds"
        );
        assert!(
            serde_json::to_string(&crd).unwrap().len() < 200 * 1024,
            "{name} is too large for kubectl apply"
        );
    }
}
