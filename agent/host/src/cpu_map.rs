//! libvirt's CPU map, which defines the features of named CPU models.
//!
//! The map is a folder: `index.xml` includes one file for each model. A model may be based on other models: it inherits
//! their features and adds its own. A feature marked `removed` was removed from the model by QEMU. A feature marked
//! `added` was added to the model later by QEMU (the `vmx-*` features, which have no meaning without `vmx`). libvirt's
//! `x86ModelParseFeatures` keeps both kinds separate from the model's features, so a host without them still has the
//! model. The map has no s390x models, which only QEMU defines.
//!
//! Loading takes a few milliseconds and about a megabyte, so a map is loaded for one query and then dropped.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::File,
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

use roxmltree::Node;
use thiserror::Error;

use crate::document::{MAX_BYTES, MAX_LIST, ParseError, Reading, children};

/// Maximum number of files in a map. libvirt 12 has 250.
const MAX_FILES: usize = 2048;

/// Maximum depth of a chain of models. libvirt's maximum is two.
const MAX_DEPTH: usize = 32;

/// Reason why a CPU map could not be loaded.
#[derive(Debug, Error)]
pub enum CpuMapError {
    /// A file could not be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// Path of the file that could not be read.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// A file could not be parsed.
    #[error("{} cannot be parsed", path.display())]
    Parse {
        /// Path of the file that could not be parsed.
        path: PathBuf,
        /// The parse error.
        source: ParseError,
    },
    /// A file includes another file outside of the map's folder.
    #[error("{} includes {include}, which is outside the folder of the CPU map", path.display())]
    Outside {
        /// Path of the file with the include.
        path: PathBuf,
        /// Name of the included file.
        include: String,
    },
    /// The map has more files than any real map.
    #[error("the CPU map has more than {MAX_FILES} files")]
    TooManyFiles,
}

/// A model as defined in its file.
#[derive(Debug, Default)]
struct Model {
    ancestors: Vec<String>,
    features: Vec<String>,
    vendor: Option<String>,
}

/// A loaded CPU map.
#[derive(Debug, Default)]
pub struct CpuMap {
    models: BTreeMap<String, Model>,
}

impl CpuMap {
    /// Loads the map from a folder.
    ///
    /// # Errors
    /// If a file is missing, cannot be parsed, or includes a file outside of the folder.
    pub fn load(folder: &Path) -> Result<Self, CpuMapError> {
        let mut map = Self::default();
        let mut seen = BTreeSet::from(["index.xml".to_owned()]);
        let mut waiting = VecDeque::from(["index.xml".to_owned()]);
        while let Some(name) = waiting.pop_front() {
            let path = folder.join(&name);
            let text = read(&path)?;
            let includes = map.add(&text).map_err(|source| CpuMapError::Parse {
                path: path.clone(),
                source,
            })?;
            for include in includes {
                let mut components = Path::new(&include).components();
                if !matches!(
                    (components.next(), components.next()),
                    (Some(Component::Normal(_)), None)
                ) {
                    return Err(CpuMapError::Outside { path, include });
                }
                if seen.insert(include.clone()) {
                    waiting.push_back(include);
                }
            }
            if seen.len() > MAX_FILES {
                return Err(CpuMapError::TooManyFiles);
            }
        }
        Ok(map)
    }

    /// Adds the models that a file defines, and returns the names of the files that it includes.
    fn add(&mut self, text: &str) -> Result<Vec<String>, ParseError> {
        Reading::parse("the CPU map", "cpus", text, |reading, root| {
            let mut includes = Vec::new();
            for node in root.descendants() {
                if node.has_tag_name("include") {
                    if let Some(file) = reading.attribute("include", node, "filename")? {
                        reading.push("include", &mut includes, file)?;
                    }
                } else if node.has_tag_name("model") && !is_ancestor(node) {
                    self.add_model(reading, node)?;
                }
            }
            Ok(includes)
        })
    }

    fn add_model(&mut self, reading: Reading, node: Node<'_, '_>) -> Result<(), ParseError> {
        let Some(name) = reading.attribute("model", node, "name")? else {
            return Ok(());
        };
        let mut model = Model::default();
        for ancestor in children(node, "model") {
            if let Some(ancestor) = reading.attribute("model", ancestor, "name")? {
                reading.push("model", &mut model.ancestors, ancestor)?;
            }
        }
        let is_own = |feature: &Node<'_, '_>| {
            ["removed", "added"]
                .iter()
                .all(|&mark| feature.attribute(mark) != Some("yes"))
        };
        for feature in children(node, "feature").filter(is_own) {
            if let Some(feature) = reading.attribute("feature", feature, "name")? {
                reading.push("feature", &mut model.features, feature)?;
            }
        }
        for vendor in children(node, "vendor") {
            model.vendor = reading.attribute("vendor", vendor, "name")?;
        }
        if self.models.len() < MAX_LIST {
            self.models.entry(name).or_insert(model);
        }
        Ok(())
    }

    /// Returns the names of all models.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.models.keys().map(String::as_str)
    }

    /// Returns whether the map has a model under this name, or under its plain name without `-v1`.
    pub fn has(&self, model: &str) -> bool {
        self.find(model).is_some()
    }

    /// Returns all features of a model, including inherited features.
    pub fn features(&self, model: &str) -> Option<BTreeSet<String>> {
        let (name, _) = self.find(model)?;
        let mut features = BTreeSet::new();
        self.visit(name, &mut |model| {
            features.extend(model.features.iter().cloned());
            true
        });
        Some(features)
    }

    /// Returns the vendor of a model, or of the first inherited model that has one.
    pub fn vendor(&self, model: &str) -> Option<String> {
        let (name, _) = self.find(model)?;
        let mut vendor = None;
        self.visit(name, &mut |model| {
            vendor.clone_from(&model.vendor);
            vendor.is_none()
        });
        vendor
    }

    /// Returns all models that have a feature.
    pub fn models_with(&self, feature: &str) -> BTreeSet<String> {
        let has = |name: &str| {
            let mut found = false;
            self.visit(name, &mut |model| {
                found = model.features.iter().any(|own| own == feature);
                !found
            });
            found
        };
        self.models.keys().filter(|name| has(name)).cloned().collect()
    }

    /// Finds a model by its name.
    ///
    /// QEMU's `X-v1` is the same model as `X`. Maps before libvirt 10.10 contain only `X`, so the canonical name in
    /// domain capabilities is `X` with these versions.
    fn find(&self, name: &str) -> Option<(&str, &Model)> {
        let plain = || {
            name.strip_suffix("-v1")
                .and_then(|plain| self.models.get_key_value(plain))
        };
        self.models
            .get_key_value(name)
            .or_else(plain)
            .map(|(name, model)| (name.as_str(), model))
    }

    /// Visits a model and the models on which it is based, each once, until `visit` returns `false`.
    fn visit(&self, name: &str, visit: &mut dyn FnMut(&Model) -> bool) {
        let mut seen = BTreeSet::from([name]);
        let mut waiting = vec![(name, 0)];
        while let Some((name, depth)) = waiting.pop() {
            let Some(model) = self.models.get(name) else { continue };
            if !visit(model) {
                return;
            }
            if depth < MAX_DEPTH {
                let more = model.ancestors.iter().filter(|ancestor| seen.insert(ancestor));
                waiting.extend(more.map(|ancestor| (ancestor.as_str(), depth + 1)));
            }
        }
    }
}

/// Returns whether a `<model>` is nested in a `<model>`. A nested element names an ancestor and defines no model.
fn is_ancestor(node: Node<'_, '_>) -> bool {
    node.parent().is_some_and(|parent| parent.has_tag_name("model"))
}

/// Reads a file of the map, at most `MAX_BYTES` + 1 bytes.
fn read(path: &Path) -> Result<String, CpuMapError> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES as u64 + 1).read_to_string(&mut text))
        .map_err(|source| CpuMapError::Read {
            path: path.to_owned(),
            source,
        })?;
    Ok(text)
}

#[cfg(test)]
mod tests;
