//! Writes all CustomResourceDefinitions to a folder: `cargo run -p drydock-api --example crds -- deploy/crds`.

use std::{env, error::Error, fs, path::Path};

use drydock_api::definitions;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args().nth(1).ok_or("usage: crds FOLDER")?;
    for crd in definitions() {
        let name = crd.metadata.name.clone().unwrap_or_default();
        let file = Path::new(&folder).join(format!("{name}.yaml"));
        fs::write(&file, serde_saphyr::to_string(&crd)?)?;
        println!("{}", file.display());
    }
    Ok(())
}
