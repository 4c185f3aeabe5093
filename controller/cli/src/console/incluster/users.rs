//! The signed-in users: each token has its own client, objects and routes.
//!
//! ```text
//!  token ─digest─▶ known? ─▶ its routes
//!                    └ no ─▶ SelfSubjectReview ─▶ watches begin; they end when
//!                              - they have not been used for a while,
//!                              - the API server no longer accepts the token, which is reviewed again and again,
//!                              - others need the place and no page is open, or the process stops.
//! ```
//!
//! A token is known by its digest. The token itself is held by its client alone, and ends with it.

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

/// Time limit of a review.
const REVIEW_WITHIN: Duration = Duration::from_secs(10);
/// The name that API servers give to users without credentials.
const ANONYMOUS: &str = "system:anonymous";

/// Limits on the tokens whose objects are kept, and on their requests and reviews.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserLimits {
    /// Tokens whose objects are kept.
    pub(super) users: usize,
    /// Tokens of one user among them. A proxy's tokens are replaced every few minutes, while older pages are still open.
    pub(super) of_user: usize,
    /// Open pages and requests of a token.
    pub(super) requests: usize,
    /// Tokens that are reviewed for the first time.
    pub(super) reviews: usize,
    /// Time without an open page or a request after which the objects of a token are dropped.
    pub(super) idle: Duration,
    /// Time between two reviews of a token, after which pages have ended whose token is no longer valid.
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
    /// Counts in `registry`.
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

/// The reason why a request is not served.
#[derive(Debug, Error)]
pub(super) enum Denied {
    #[error(transparent)]
    NoToken(NoToken),
    #[error("the API server does not accept the token: {0}")]
    Refused(String),
    #[error(
        "the console keeps the objects of at most {0} tokens at once, and pages are open with all of them; close some, or try again later"
    )]
    Full(usize),
    #[error(
        "the console keeps the objects of at most {0} tokens of a user at once, and pages are open with all of yours; close some"
    )]
    TooManyOfUser(usize),
    #[error("the console serves at most {0} open pages and requests of a token at once; close some")]
    TooManyRequests(usize),
    #[error("too many sign in at the same time; try again in a moment")]
    Busy,
    #[error("the API server has not reviewed the token")]
    NotReviewed(#[source] Unreviewed),
}

/// The reason why the user of a token is unknown.
#[derive(Debug, Error)]
pub(super) enum Unreviewed {
    #[error(transparent)]
    Server(ServerAddressError),
    #[error("the request has failed")]
    Request(#[source] Box<kube::Error>),
    #[error("there was no response within {} s", REVIEW_WITHIN.as_secs())]
    TimedOut,
    #[error("it does not name its user")]
    Nameless,
}

/// A token that the API server has accepted.
pub(super) struct SignedInUser {
    name: String,
    shared: Arc<ConsoleContext>,
    routes: Router,
    process: Process,
    review: Notify,
}

impl SignedInUser {
    /// Returns what this user sees and does.
    pub(super) fn routes(&self) -> Router {
        self.routes.clone()
    }

    /// Returns the token that is cancelled when the user's token is no longer valid.
    pub(super) fn ended(&self) -> CancellationToken {
        self.process.stopping()
    }

    /// Has the token reviewed now.
    pub(super) fn review_now(&self) {
        self.review.notify_one();
    }

    fn is_used(&self) -> bool {
        self.shared.active.load(Ordering::Relaxed) > 0
    }
}

/// A user with a request in progress or an open page.
pub(super) struct Visit {
    pub(super) user: Arc<SignedInUser>,
    _active: Active,
}

/// All users. Clones share one state.
#[derive(Clone)]
pub(super) struct Users(Arc<UserTable>);

struct UserTable {
    server: Server,
    /// The cluster, without a user.
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
    /// Creates an empty set. Everything ends when `closing` is cancelled; `process` runs the tasks.
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

    /// Returns the user of a token. If it is not known, the API server reviews it.
    ///
    /// # Errors
    /// If the API server does not accept it, or there are too many.
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

    /// Begins to keep objects for a token, unless another request has.
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

    /// Begins something for a user. All users are locked, so that this one does not end meanwhile.
    fn visit(&self, user: &Arc<SignedInUser>) -> Result<Visit, Denied> {
        if user.shared.active.load(Ordering::Relaxed) >= self.limits.requests {
            return Err(Denied::TooManyRequests(self.limits.requests));
        }
        Ok(Visit {
            _active: Active::new(&user.shared),
            user: user.clone(),
        })
    }

    /// Ends the user among these that has not been used for longest.
    fn make_room(&self, known: &mut HashMap<Digest, Arc<SignedInUser>>, among: impl Fn(&SignedInUser) -> bool) {
        let unused = known.iter().filter(|(_, user)| among(user) && !user.is_used());
        let oldest = unused.min_by_key(|(_, user)| *user.shared.last.borrow());
        if let Some(digest) = oldest.map(|(digest, _)| *digest) {
            self.end(known, &digest, "others need the place");
        }
    }

    fn end(&self, known: &mut HashMap<Digest, Arc<SignedInUser>>, digest: &Digest, why: &str) {
        if let Some(user) = known.remove(digest) {
            info!(user = user.name, why, "the objects of a user are dropped");
            user.process.stop();
            self.count(known);
        }
    }

    /// Ends a user once that is due.
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
                        self.end(&mut known, &digest, "it is not used");
                    }
                }
                () = until_review(&user, self.limits.review) => match review(&user.shared.client).await {
                    Ok(_) => {}
                    Err(Denied::Refused(_)) => {
                        self.metrics.refused.inc();
                        self.end(&mut self.known.lock(), &digest, "the token is no longer valid");
                    }
                    // Pages show that the API server is not reached.
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

/// Returns the name of a client's user, as the API server knows it.
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
        // Something in between has removed the token.
        Some(name) if name == ANONYMOUS => Err(Denied::Refused(String::new())),
        Some(name) => Ok(name),
        None => Err(Denied::NotReviewed(Unreviewed::Nameless)),
    }
}

/// Returns why a token was refused, as far as it shows that itself.
fn refusal(token: &Token, now: Timestamp) -> String {
    match token.expiry() {
        Some(expiry) if expiry <= now => format!("it expired at {}", expiry.strftime("%Y-%m-%d %H:%M:%S UTC")),
        _ => "it is none of this cluster, was revoked, or its ServiceAccount was deleted".into(),
    }
}
