//! Queries of libvirt's CPU map for the decisions of this agent.
//!
//! The map is large and rarely needed. It is read for each query and dropped afterwards. The result is kept until the
//! query changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use drydock_core::{mask::MaskedModels, minimum_cpu::DEFAULT_MODEL};
use drydock_host::cpu_map::CpuMap;
use tracing::warn;

/// Result of a query.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryResult {
    /// Features of each queried model; `None` if the map does not contain the model.
    models: BTreeMap<String, Option<BTreeSet<String>>>,
    /// Models that contain a masked feature.
    pub(crate) masked_models: MaskedModels,
    /// Whether the map could be read.
    readable: bool,
}

impl QueryResult {
    /// Returns whether the map contains a model. The default minimum model needs no map.
    pub(crate) fn knows(&self, model: &str) -> bool {
        model == DEFAULT_MODEL || self.features(model).is_some()
    }

    /// Returns the features of a model.
    pub(crate) fn features(&self, model: &str) -> Option<BTreeSet<String>> {
        self.models.get(model).cloned().flatten()
    }
}

/// Queries the map and caches the last query with its result.
#[derive(Debug)]
pub(crate) struct CpuMapQueries {
    folder: PathBuf,
    last: Option<(BTreeSet<String>, BTreeSet<String>, QueryResult)>,
}

impl CpuMapQueries {
    /// Creates queries to the map in `folder`.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, last: None }
    }

    /// Drops the cached result because the map may have changed.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    /// Returns the features of `models` and the models that contain a feature of `mask`.
    pub(crate) fn query(&mut self, models: BTreeSet<String>, mask: &BTreeSet<String>) -> QueryResult {
        let models: BTreeSet<String> = models.into_iter().filter(|model| model != DEFAULT_MODEL).collect();
        if let Some((known_models, known_mask, result)) = &self.last
            && *known_models == models
            && known_mask == mask
        {
            return result.clone();
        }
        let result = self.read(&models, mask);
        // A failed read is not cached, so the next call retries it.
        if result.readable {
            self.last = Some((models, mask.clone(), result.clone()));
        }
        result
    }

    fn read(&self, models: &BTreeSet<String>, mask: &BTreeSet<String>) -> QueryResult {
        if models.is_empty() && mask.is_empty() {
            return QueryResult {
                readable: true,
                ..QueryResult::default()
            };
        }
        let map = match CpuMap::load(&self.folder) {
            Ok(map) => map,
            Err(error) => {
                warn!(folder = %self.folder.display(), error = %drydock_runtime::chain(&error), "cannot read libvirt's CPU map");
                return QueryResult::default();
            }
        };
        let mut masked_models = MaskedModels::new();
        for feature in mask {
            for model in map.models_with(feature) {
                masked_models.entry(model).or_default().insert(feature.clone());
            }
        }
        let models = models
            .iter()
            .map(|model| (model.clone(), map.features(model)))
            .collect();
        QueryResult {
            models,
            masked_models,
            readable: true,
        }
    }
}
