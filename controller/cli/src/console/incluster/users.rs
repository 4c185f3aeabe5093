//! The signed-in users. Each token has its own client, objects and routes.
//!
//! ```text
//!  token ─digest─▶ known? ─▶ its routes
//!                    └ no ─▶ SelfSubjectReview ─▶ watches begin; they end when
//!                              - they have not been used for a while,
//!                              - the API server no longer accepts the token, which is reviewed again and again,
//!                              - others need the place and no page is open, or the process stops.
//! ```
//!
//! A token is identified by its digest. Only the client of the token holds the token itself, and both are dropped
//! together.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::Router;
use drydock_runtime::{CancellationToken, Process, Registry, chain, clock};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use thiserror::Error;
use tokio::{
    sync::{Notify, Semaphore},
    time::{sleep, timeout},
};
use tracing::{info, warn};

use super::{
    super::{Active, ClusterContext, ConsoleContext, idle, routes},
    token::{Digest, NoToken, Token},
};
use crate::connection::{Server, ServerAddressError};

/// Time limit for the review of a token.
const REVIEW_WITHIN: Duration = Duration::from_secs(10);
/// Name that the API server gives to users without credentials.
const ANONYMOUS: &str = "system:anonymous";

/// Limits on the tokens whose objects are kept, and on their requests and reviews.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserLimits {
    /// Number of tokens whose objects are kept.
    pub(super) users: usize,
    /// Number of these tokens that can belong to one user. A proxy replaces tokens every few minutes while older pages
    /// are still open.
    pub(super) of_user: usize,
    /// Number of open pages and requests of a token.
    pub(super) requests: usize,
    /// Number of tokens that are reviewed for the first time at once.
    pub(super) reviews: usize,
    /// Time without an open page or a request after which the objects of a token are dropped.
    pub(super) idle: Duration,
    /// Interval of the reviews of a token. Pages with a token that is no longer valid end within this time.
    pub(super) review: Duration,
}

impl Default for UserLimits {
    fn default() -> Self {
        Self {
            users: 20,
            of_user: 4,
            requests: 32,
            reviews: 16,
            idle: Duration::from_secs(120),
            review: Duration::from_secs(30),
        }
    }
}

/// Metrics of users.
#[derive(Clone, Debug, Default)]
pub(super) struct UserMetrics {
    tokens: Gauge,
    refused: Counter,
}

impl UserMetrics {
    /// Registers the metrics in `registry`.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "drydock_console_tokens",
            "Tokens whose objects are kept",
            metrics.tokens.clone(),
        );
        registry.register(
            "drydock_console_tokens_refused",
            "Tokens that the API server has not accepted",
            metrics.refused.clone(),
        );
        metrics
    }
}

/// Reason why a request of a user is not served.
#[derive(Debug, Error)]
pub(super) enum Denied {
    #[error(transparent)]
    NoToken(NoToken),
    #[error("the API server does not accept the token: {0}")]
    Refused(String),
    #[error(
        "the console keeps the objects of at most {0} tokens at once, and pages with all of these tokens are open; \
         close some pages, or try again later"
    )]
    Full(usize),
    #[error(
        "the console keeps the objects of at most {0} tokens of a user at once, and pages with all of your tokens are \
         open; close some pages"
    )]
    TooManyOfUser(usize),
    #[error("the console serves at most {0} open pages and requests of a token at once; close some pages")]
    TooManyRequests(usize),
    #[error("too many users are signing in at the same time; try again in a moment")]
    Busy,
    #[error("the API server did not review the token")]
    NotReviewed(#[source] Unreviewed),
}

/// Reason why the user of a token could not be determined.
#[derive(Debug, Error)]
pub(super) enum Unreviewed {
    #[error(transparent)]
    Server(ServerAddressError),
    #[error("the request failed")]
    Request(#[source] Box<kube::Error>),
    #[error("the API server did not respond within {} s", REVIEW_WITHIN.as_secs())]
    TimedOut,
    #[error("the review does not name the user")]
    Nameless,
}

/// User of a token that the API server has accepted.
pub(super) struct SignedInUser {
    name: String,
    shared: Arc<ConsoleContext>,
    routes: Router,
    process: Process,
    review: Notify,
}

impl SignedInUser {
    /// Returns the routes of the user's pages and actions.
    pub(super) fn routes(&self) -> Router {
        self.routes.clone()
    }

    /// Returns the token that is cancelled when the user's bearer token is no longer valid.
    pub(super) fn ended(&self) -> CancellationToken {
        self.process.stopping()
    }

    /// Triggers a review of the user's token.
    pub(super) fn review_now(&self) {
        self.review.notify_one();
    }

    fn is_used(&self) -> bool {
        self.shared.active.load(Ordering::Relaxed) > 0
    }
}

/// A request in progress or an open page of a user.
pub(super) struct Visit {
    pub(super) user: Arc<SignedInUser>,
    _active: Active,
}

/// The users of all known tokens. Clones share one state.
#[derive(Clone)]
pub(super) struct Users(Arc<UserTable>);

struct UserTable {
    server: Server,
    /// Description of the cluster, without the name of a user.
    cluster: ClusterContext,
    read_only: bool,
    limits: UserLimits,
    known: Mutex<HashMap<Digest, Arc<SignedInUser>>>,
    reviews: Semaphore,
    metrics: UserMetrics,
    process: Process,
    closing: CancellationToken,
}

impl Users {
    /// Returns an empty collection. All users end when `closing` is cancelled. `process` runs the tasks.
    pub(super) fn new(
        server: Server,
        cluster: ClusterContext,
        read_only: bool,
        limits: UserLimits,
        metrics: UserMetrics,
        process: Process,
        closing: CancellationToken,
    ) -> Self {
        Self(Arc::new(UserTable {
            server,
            cluster,
            read_only,
            limits,
            known: Mutex::default(),
            reviews: Semaphore::new(limits.reviews),
            metrics,
            process,
            closing,
        }))
    }

    /// Returns a visit by the user of a token. The API server reviews the token if it is not known yet.
    ///
    /// # Errors
    /// If the API server does not accept the token, or a limit is exceeded.
    pub(super) async fn enter(&self, token: Token) -> Result<Visit, Denied> {
        let digest = token.digest();
        if let Some(user) = self.0.known.lock().get(&digest) {
            return self.0.visit(user);
        }
        let permit = self.0.reviews.try_acquire().map_err(|_| Denied::Busy)?;
        let client = self.0.server.client(token.secret());
        let client = client.map_err(|error| Denied::NotReviewed(Unreviewed::Server(error)))?;
        let name = match review(&client).await {
            Err(Denied::Refused(_)) => {
                self.0.metrics.refused.inc();
                return Err(Denied::Refused(refusal(&token, clock::now())));
            }
            reviewed => reviewed?,
        };
        drop(permit);
        self.admit(digest, &client, name)
    }

    /// Starts to keep objects for a token, unless another request has started that already.
    fn admit(&self, digest: Digest, client: &Client, name: String) -> Result<Visit, Denied> {
        let mut known = self.0.known.lock();
        if let Some(user) = known.get(&digest) {
            return self.0.visit(user);
        }
        let UserLimits { users, of_user, .. } = self.0.limits;
        if known.values().filter(|user| user.name == name).count() >= of_user {
            self.0.make_room(&mut known, |user| user.name == name);
        }
        if known.values().filter(|user| user.name == name).count() >= of_user {
            return Err(Denied::TooManyOfUser(of_user));
        }
        if known.len() >= users {
            self.0.make_room(&mut known, |_| true);
        }
        if known.len() >= users {
            return Err(Denied::Full(users));
        }
        let process = Process::new();
        let cluster = ClusterContext {
            user: name.clone(),
            ..self.0.cluster.clone()
        };
        let shared = ConsoleContext::start(client, cluster, self.0.read_only, &process);
        let user = Arc::new(SignedInUser {
            routes: routes(shared.clone()),
            name,
            shared,
            process,
            review: Notify::new(),
        });
        info!(user = user.name, "a user has signed in");
        known.insert(digest, user.clone());
        self.0.count(&known);
        let keeping = self.0.clone().keep(digest, user.clone());
        self.0.process.spawn("keeping a user", keeping);
        self.0.visit(&user)
    }
}

impl UserTable {
    fn count(&self, known: &HashMap<Digest, Arc<SignedInUser>>) {
        self.metrics.tokens.set(i64::try_from(known.len()).unwrap_or(i64::MAX));
    }

    /// Starts a visit of a user. The caller has locked all users, so that this user does not end in the meantime.
    fn visit(&self, user: &Arc<SignedInUser>) -> Result<Visit, Denied> {
        if user.shared.active.load(Ordering::Relaxed) >= self.limits.requests {
            return Err(Denied::TooManyRequests(self.limits.requests));
        }
        Ok(Visit {
            _active: Active::new(&user.shared),
            user: user.clone(),
        })
    }

    /// Drops the user that has been unused for the longest time and matches `among`.
    fn make_room(&self, known: &mut HashMap<Digest, Arc<SignedInUser>>, among: impl Fn(&SignedInUser) -> bool) {
        let unused = known.iter().filter(|(_, user)| among(user) && !user.is_used());
        let oldest = unused.min_by_key(|(_, user)| *user.shared.last.borrow());
        if let Some(digest) = oldest.map(|(digest, _)| *digest) {
            self.end(known, &digest, "the limit of tokens is reached");
        }
    }

    fn end(&self, known: &mut HashMap<Digest, Arc<SignedInUser>>, digest: &Digest, why: &str) {
        if let Some(user) = known.remove(digest) {
            info!(user = user.name, why, "the objects of a user are dropped");
            user.process.stop();
            self.count(known);
        }
    }

    /// Drops a user when the console ends, the user is idle, or the token is no longer valid.
    async fn keep(self: Arc<Self>, digest: Digest, user: Arc<SignedInUser>) {
        let ended = user.ended();
        loop {
            tokio::select! {
                () = ended.cancelled() => return,
                () = self.closing.cancelled() => {
                    self.end(&mut self.known.lock(), &digest, "the console ends");
                }
                () = idle(&user.shared, self.limits.idle) => {
                    let mut known = self.known.lock();
                    if !user.is_used() {
                        self.end(&mut known, &digest, "the token is not used");
                    }
                }
                () = until_review(&user, self.limits.review) => match review(&user.shared.client).await {
                    Ok(_) => {}
                    Err(Denied::Refused(_)) => {
                        self.metrics.refused.inc();
                        self.end(&mut self.known.lock(), &digest, "the token is no longer valid");
                    }
                    // The user is kept. The pages show that the API server cannot be reached.
                    Err(error) => warn!(user = user.name, error = %chain(&error), "a token could not be reviewed"),
                },
            }
        }
    }
}

async fn until_review(user: &SignedInUser, limit: Duration) {
    tokio::select! {
        () = sleep(limit) => {}
        () = user.review.notified() => {}
    }
}

/// Returns the name of the client's user according to the API server.
async fn review(client: &Client) -> Result<String, Denied> {
    let api = Api::<SelfSubjectReview>::all(client.clone());
    let (parameters, own) = (PostParams::default(), SelfSubjectReview::default());
    let reviewed = timeout(REVIEW_WITHIN, api.create(&parameters, &own)).await;
    let review = match reviewed {
        Err(_) => return Err(Denied::NotReviewed(Unreviewed::TimedOut)),
        Ok(Err(kube::Error::Api(status))) if status.code == 401 => return Err(Denied::Refused(String::new())),
        Ok(Err(error)) => return Err(Denied::NotReviewed(Unreviewed::Request(Box::new(error)))),
        Ok(Ok(review)) => review,
    };
    let name = review.status.and_then(|status| status.user_info?.username);
    match name.filter(|name| !name.is_empty()) {
        // A component between the console and the API server has removed the token.
        Some(name) if name == ANONYMOUS => Err(Denied::Refused(String::new())),
        Some(name) => Ok(name),
        None => Err(Denied::NotReviewed(Unreviewed::Nameless)),
    }
}

/// Returns the reason why a token was rejected, as far as the token itself shows it.
fn refusal(token: &Token, now: Timestamp) -> String {
    match token.expiry() {
        Some(expiry) if expiry <= now => format!("it expired at {}", expiry.strftime("%Y-%m-%d %H:%M:%S UTC")),
        _ => "it was not issued for this cluster, was revoked, or its ServiceAccount was deleted".into(),
    }
}
