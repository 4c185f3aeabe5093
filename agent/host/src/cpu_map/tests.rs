use std::fs;

use proptest::prelude::*;

use super::*;

/// Folder with a CPU map. It is removed at the end of the test.
struct MapFolder(PathBuf);

impl MapFolder {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = nix::unistd::mkdtemp(&std::env::temp_dir().join("drydock-cpu-map-XXXXXX")).unwrap();
        for (name, content) in files {
            fs::write(folder.join(name), format!("<cpus>{content}</cpus>")).unwrap();
        }
        Self(folder)
    }

    fn load(&self) -> Result<CpuMap, CpuMapError> {
        CpuMap::load(&self.0)
    }
}

impl Drop for MapFolder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn models_are_built_on_models() {
    let folder = MapFolder::new(&[
        (
            "index.xml",
            "<arch name='x86'><include filename='a.xml'/><group name='g'><include filename='b.xml'/></group></arch>",
        ),
        (
            "a.xml",
            "<feature name='ignored'/><model name='A'><vendor name='V'/><feature name='x'/><feature name='gone' removed='yes'/></model>",
        ),
        (
            "b.xml",
            "<include filename='a.xml'/><model name='B'><model name='A'/><feature name='y'/></model>
            <model name='C'><model name='B'/><model name='A'/><vendor name='W'/></model>
            <model name='Orphan'><model name='absent'/><feature name='z'/></model>
            <model name='A'><feature name='second'/></model>",
        ),
    ]);
    let map = folder.load().unwrap();
    assert_eq!(map.models().collect::<Vec<_>>(), ["A", "B", "C", "Orphan"]);
    assert_eq!(map.features("C"), Some(set(&["x", "y"])));
    assert_eq!(map.features("Orphan"), Some(set(&["z"])));
    assert_eq!(map.features("absent"), None);
    assert_eq!(map.models_with("x"), set(&["A", "B", "C"]));
    assert_eq!(map.models_with("gone"), set(&[]));
    assert_eq!(map.vendor("B").as_deref(), Some("V"));
    assert_eq!(map.vendor("C").as_deref(), Some("W"));
    // The first version of a model is the model with its plain name.
    assert_eq!(map.features("B-v1"), map.features("B"));
    assert_eq!(map.features("B-v2"), None);
    assert!(map.has("B-v1") && !map.has("B-v2"));
}

/// Uses lines of libvirt 11.3's CPU map: a model and its next version.
#[test]
fn features_added_later_are_not_of_the_model() {
    let folder = MapFolder::new(&[(
        "index.xml",
        "<model name='Nehalem'><vendor name='Intel'/><feature name='popcnt'/><feature name='sse4.2'/>
        <feature name='vmx-activity-hlt' added='yes'/><feature name='vmx-ept' added='yes'/></model>
        <model name='Nehalem-v2'><model name='Nehalem'/><feature name='spec-ctrl' added='no'/></model>",
    )]);
    let map = folder.load().unwrap();
    assert_eq!(map.features("Nehalem"), Some(set(&["popcnt", "sse4.2"])));
    assert_eq!(
        map.features("Nehalem-v2"),
        Some(set(&["popcnt", "sse4.2", "spec-ctrl"]))
    );
    // A node that masks one of these features therefore keeps the models.
    assert_eq!(map.models_with("vmx-ept"), set(&[]));
}

#[test]
fn circles_end() {
    let folder = MapFolder::new(&[(
        "index.xml",
        "<include filename='index.xml'/><model name='A'><model name='B'/><feature name='a'/></model>
        <model name='B'><model name='A'/><feature name='b'/></model><model name='Self'><model name='Self'/></model>",
    )]);
    let map = folder.load().unwrap();
    assert_eq!(map.features("A"), Some(set(&["a", "b"])));
    assert_eq!(map.features("Self"), Some(set(&[])));
    assert_eq!(map.vendor("Self"), None);
}

#[test]
fn only_files_of_the_folder_are_included() {
    for include in ["../outside.xml", "/etc/passwd", "sub/file.xml", ".."] {
        let folder = MapFolder::new(&[("index.xml", &format!("<include filename='{include}'/>"))]);
        assert!(matches!(folder.load(), Err(CpuMapError::Outside { .. })), "{include}");
    }
}

#[test]
fn errors_name_the_file() {
    let folder = MapFolder::new(&[("index.xml", "<include filename='gone.xml'/>")]);
    let error = folder.load().unwrap_err().to_string();
    assert!(error.ends_with("gone.xml cannot be read"), "{error}");
    fs::write(folder.0.join("gone.xml"), "<cpus>").unwrap();
    let error = folder.load().unwrap_err().to_string();
    assert!(error.ends_with("gone.xml cannot be parsed"), "{error}");
    assert!(CpuMap::load(Path::new("/nowhere")).is_err());
}

/// Loads the map of the installed libvirt, which is needed to build this crate.
#[test]
fn the_installed_map() {
    let folder = Path::new("/usr/share/libvirt/cpu_map");
    if !folder.exists() {
        eprintln!("skipped: the_installed_map: {} is not there", folder.display());
        return;
    }
    let start = std::time::Instant::now();
    let map = CpuMap::load(folder).unwrap();
    println!("loaded {} models in {:?}", map.models().count(), start.elapsed());
    let penryn = map.features("Penryn").unwrap();
    assert!(
        penryn.contains("sse4.1") && penryn.contains("ssse3") && !penryn.contains("sse4.2"),
        "{penryn:?}"
    );
    assert!(map.features("Nehalem").unwrap().is_superset(&penryn));
    assert!(map.models_with("avx2").contains("Haswell"));
    assert_eq!(map.vendor("EPYC").as_deref(), Some("AMD"));
    assert_eq!(map.features("Penryn-v1"), Some(penryn));
    let later = |name: &String| name.starts_with("vmx-");
    assert!(!map.features("Haswell").unwrap().iter().any(later));
}

#[test]
fn chains_are_followed_to_a_depth_and_no_further() {
    let chain: String = (0..3000)
        .map(|n| {
            format!(
                "<model name='{n}'><model name='{}'/><feature name='f{n}'/></model>",
                n + 1
            )
        })
        .collect();
    let folder = MapFolder::new(&[("index.xml", &chain)]);
    let map = folder.load().unwrap();
    assert_eq!(map.features("0").unwrap().len(), MAX_DEPTH + 1);
    assert_eq!(map.models_with("f2").len(), 3);
}

/// Generates random definitions that refer to each other.
fn definitions() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["A", "B", "C-v1", "C", "", "x'"]);
    let definition = (name.clone(), prop::collection::vec((name, any::<bool>()), 0..4)).prop_map(|(name, parts)| {
        let parts = parts.iter().map(|(name, is_model)| {
            let element = if *is_model { "model" } else { "feature" };
            format!("<{element} name='{name}'/>")
        });
        format!("<model name='{name}'>{}</model>", parts.collect::<String>())
    });
    prop::collection::vec(definition, 0..8).prop_map(|definitions| definitions.concat())
}

proptest! {
    #[test]
    fn any_file(text in prop_oneof![definitions().prop_map(|text| format!("<cpus>{text}</cpus>")), "\\PC{0,500}"]) {
        let mut map = CpuMap::default();
        let _ = map.add(&text);
        for model in map.models() {
            prop_assert!(map.features(model).is_some());
            let _ = map.vendor(model);
        }
        for feature in ["A", "B", "C"] {
            for model in map.models_with(feature) {
                prop_assert!(map.features(&model).is_some_and(|features| features.contains(feature)));
            }
        }
    }
}
