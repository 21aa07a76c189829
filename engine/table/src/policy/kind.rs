//! The names of the policies, and the one place that maps a name to a type.

/// The name of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// First in, first out.
    Fifo,
    /// Least recently used, with the resolution of the set's clock.
    Lru,
    /// One bit of recency and a hand (second chance).
    Clock,
    /// Least frequently used, eight bits, halved in the whole set on overflow.
    Lfu,
    /// `Lfu` with ghosts: the frequency of a page that returns is reinstated (HotStorage '12).
    NrLfu,
    /// Two clocks and two lists of ghosts, balanced by the ghosts that return in the whole
    /// partition (FAST '04).
    Car,
    /// Eight queues by frequency, from which pages fall back with time (USENIX ATC '01).
    Mq,
    /// The default. Five eviction orders compete on miniature caches of the partition, and the best
    /// one is used.
    #[default]
    Octavo,
}

impl PolicyKind {
    /// All policies, in the order of the documentation.
    pub const ALL: [PolicyKind; 8] = [
        PolicyKind::Fifo,
        PolicyKind::Lru,
        PolicyKind::Clock,
        PolicyKind::Lfu,
        PolicyKind::NrLfu,
        PolicyKind::Car,
        PolicyKind::Mq,
        PolicyKind::Octavo,
    ];

    /// Returns the name that configurations use.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyKind::Fifo => "fifo",
            PolicyKind::Lru => "lru",
            PolicyKind::Clock => "clock",
            PolicyKind::Lfu => "lfu",
            PolicyKind::NrLfu => "nrlfu",
            PolicyKind::Car => "car",
            PolicyKind::Mq => "mq",
            PolicyKind::Octavo => "octavo",
        }
    }
}

/// The name is not the name of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(pub String);

impl std::fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown policy {:?}, expected one of", self.0)?;
        PolicyKind::ALL.iter().try_for_each(|kind| write!(f, " {}", kind.name()))
    }
}

impl std::error::Error for UnknownPolicy {}

impl std::str::FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownPolicy(name.into()))
    }
}

/// Evaluates `$body`, in which `$policy` is the type of the policy `$kind`. The types have the
/// names of the kinds.
macro_rules! with_policy {
    ($kind:expr, $policy:ident => $body:expr) => {
        $crate::policy::with_policy!(
            $kind, $policy => $body, among Fifo Lru Clock Lfu NrLfu Car Mq Octavo
        )
    };
    ($kind:expr, $policy:ident => $body:expr, among $($name:ident)*) => {
        match $kind {
            $($crate::policy::PolicyKind::$name => {
                type $policy = $crate::policy::$name;
                $body
            })*
        }
    };
}
pub(crate) use with_policy;
