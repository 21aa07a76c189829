//! The machine's nodes: their processors, their memory, and the distances between them.
//!
//! The topology is read from sysfs, for the processors and nodes that this process may use; or
//! it is emulated (`2x4`: two nodes of four cores), for tests and for machines with one node. If
//! it cannot be read, the machine counts as one node, which costs only locality.
//!
//! Not here: binding memory to a node (`mod.rs`), the node of a thread (`here.rs`).

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Most nodes to distinguish. Processors of further nodes count as those of the nearest one.
pub const NODES_MAX: usize = octavo_table::NODES_MAX as usize;

/// Most cores of an emulated node.
const CORES_MAX: u32 = 64;

/// Source of a cache's topology.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologySource {
    /// The machine.
    #[default]
    Machine,
    /// Emulated nodes: threads take one core after the other, and memory stays where it is.
    Emulated {
        /// Number of nodes, 1 to 16.
        nodes: u32,
        /// Cores of each node, 1 to 64.
        cores: u32,
    },
}

/// The nodes of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// In the order of their numbers.
    pub nodes: Vec<Node>,
    /// Whether the nodes are emulated: memory is not bound to them.
    pub is_emulated: bool,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number of the node.
    pub number: u32,
    /// Numbers of the node's processors that this process may use.
    pub cpus: Vec<u32>,
    /// The node's memory in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// Distances of the nodes from this one, in the order of `nodes`; 10 is this node, 0
    /// unknown.
    pub distances: Vec<u32>,
}

impl FromStr for TopologySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(TopologySource::Machine);
        }
        let number = |text: &str, most: u32| text.parse::<u32>().ok().filter(|n| (1..=most).contains(n));
        text.split_once('x')
            .and_then(|(nodes, cores)| {
                let (nodes, cores) = (number(nodes, NODES_MAX as u32)?, number(cores, CORES_MAX)?);
                Some(TopologySource::Emulated { nodes, cores })
            })
            .ok_or_else(|| {
                format!(
                    "auto is expected, or nodes times cores such as 2x4: up to {NODES_MAX} and {CORES_MAX}"
                )
            })
    }
}

impl fmt::Display for TopologySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopologySource::Machine => f.write_str("auto"),
            TopologySource::Emulated { nodes, cores } => write!(f, "{nodes}x{cores}"),
        }
    }
}

impl TopologySource {
    /// Returns the topology. If the machine's cannot be read, logs a warning with the reason and
    /// returns one node.
    pub fn topology(self) -> Topology {
        match self {
            TopologySource::Machine => {
                let allowed = Allowed::here();
                Topology::read(Path::new("/sys/devices/system/node"), &allowed).unwrap_or_else(|why| {
                    log::warn!("cannot read the machine's nodes, so it counts as one node: {why}");
                    Topology::one(allowed.cpus.unwrap_or_default())
                })
            }
            TopologySource::Emulated { nodes, cores } => Topology::emulated(nodes, cores),
        }
    }

    /// Checks that such a topology is possible; the error is a sentence.
    pub(crate) fn check(self) -> Result<(), String> {
        self.to_string()
            .parse::<TopologySource>()
            .map(drop)
            .map_err(|why| format!("topology is {self}: {why}"))
    }
}

/// What this process may use. `None`: everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allowed {
    pub cpus: Option<Vec<u32>>,
    pub nodes: Option<Vec<u32>>,
}

impl Allowed {
    fn here() -> Allowed {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let list = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            numbers(line).ok()
        };
        Allowed { cpus: list("Cpus_allowed_list:"), nodes: list("Mems_allowed_list:") }
    }
}

impl Topology {
    /// A topology of one node.
    fn one(cpus: Vec<u32>) -> Topology {
        Topology {
            nodes: vec![Node { number: 0, cpus, memory_bytes: 0, distances: vec![10] }],
            is_emulated: false,
        }
    }

    fn emulated(nodes: u32, cores: u32) -> Topology {
        let node = |number: u32| Node {
            number,
            cpus: (number * cores..(number + 1) * cores).collect(),
            memory_bytes: 0,
            distances: (0..nodes).map(|other| if other == number { 10 } else { 20 }).collect(),
        };
        Topology { nodes: (0..nodes).map(node).collect(), is_emulated: true }
    }

    /// Reads a folder laid out as `/sys/devices/system/node`. The error is a sentence.
    pub(crate) fn read(root: &Path, allowed: &Allowed) -> Result<Topology, String> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let parse = |path: &Path| numbers(&read(path)?).map_err(|why| format!("{}: {why}", path.display()));
        let is_in = |list: &Option<Vec<u32>>, number| list.as_ref().is_none_or(|all| all.contains(&number));
        let online = parse(&root.join("online"))?;
        let mut nodes = Vec::new();
        for number in &online {
            let folder = root.join(format!("node{number}"));
            let cpus = parse(&folder.join("cpulist"))?;
            let distances = read(&folder.join("distance"))?;
            let distances: Vec<u32> = distances.split_whitespace().filter_map(|n| n.parse().ok()).collect();
            // A node whose memory is unknown is kept.
            let memory_bytes = read(&folder.join("meminfo")).ok().map_or(u64::MAX, |text| total_bytes(&text));
            let cpus = cpus.into_iter().filter(|cpu| is_in(&allowed.cpus, *cpu)).collect();
            nodes.push(Node { number: *number, cpus, memory_bytes, distances });
        }
        // 1. Keep the nodes that can hold pages for processors of ours.
        let may_hold = |node: &Node| node.memory_bytes > 0 && is_in(&allowed.nodes, node.number);
        let holds = |node: &Node| !node.cpus.is_empty() && may_hold(node);
        let kept: Vec<usize> = (0..nodes.len()).filter(|at| holds(&nodes[*at])).take(NODES_MAX).collect();
        let Some(first) = kept.first() else {
            return Err("no node has both memory and processors for this process".into());
        };
        // 2. Give the processors of the other nodes to the nearest node kept.
        for at in (0..nodes.len()).filter(|at| !kept.contains(at)) {
            let nearest = |near: &&usize| nodes[at].distances.get(**near).copied().unwrap_or(u32::MAX);
            let nearest = *kept.iter().min_by_key(nearest).unwrap_or(first);
            let cpus = std::mem::take(&mut nodes[at].cpus);
            nodes[nearest].cpus.extend(cpus);
        }
        let keep = |at: &usize| {
            let node = &nodes[*at];
            let distances = kept.iter().map(|to| node.distances.get(*to).copied().unwrap_or(0)).collect();
            let memory_bytes = if node.memory_bytes == u64::MAX { 0 } else { node.memory_bytes };
            Node { number: node.number, cpus: node.cpus.clone(), memory_bytes, distances }
        };
        Ok(Topology { nodes: kept.iter().map(keep).collect(), is_emulated: false })
    }

    /// Returns the index in `nodes` of a processor's node; 0 for a processor of no node.
    pub(crate) fn node_of_cpu(&self, cpu: u32) -> usize {
        self.nodes.iter().position(|node| node.cpus.contains(&cpu)).unwrap_or(0)
    }
}

/// Parses the kernel's lists: `0-3,8,10-11`, possibly empty.
fn numbers(text: &str) -> Result<Vec<u32>, String> {
    /// More processors than any machine has.
    const NUMBER_MAX: u32 = 1 << 16;
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number < NUMBER_MAX);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => all.extend(first..=last),
            _ => return Err(format!("\"{part}\" is no range of numbers")),
        }
    }
    Ok(all)
}

/// Returns `MemTotal` of a node's meminfo; `u64::MAX` if it is missing.
fn total_bytes(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.split_once("MemTotal:").map(|(_, rest)| rest));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A folder like sysfs's.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn new(name: &str, online: &str, nodes: &[(&str, &str, &str)]) -> Sysfs {
            let root = std::env::temp_dir().join(format!("octavo-topology-{}-{name}", std::process::id()));
            let sysfs = Sysfs(root);
            sysfs.write("online", online);
            for (number, (cpus, distances, kib)) in nodes.iter().enumerate() {
                sysfs.write(&format!("node{number}/cpulist"), cpus);
                sysfs.write(&format!("node{number}/distance"), distances);
                let meminfo =
                    format!("Node {number} MemTotal:       {kib} kB\nNode {number} MemFree: 7 kB\n");
                sysfs.write(&format!("node{number}/meminfo"), &meminfo);
            }
            sysfs
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn read(&self, cpus: Option<&str>, nodes: Option<&str>) -> Result<Topology, String> {
            let list = |text: Option<&str>| text.map(|text| numbers(text).unwrap());
            Topology::read(&self.0, &Allowed { cpus: list(cpus), nodes: list(nodes) })
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn two_nodes_are_read_with_their_processors_memory_and_distances() {
        let two = [("0-3,8-11\n", "10 21\n", "1024"), ("4-7,12-15\n", "21 10\n", "2048")];
        let sysfs = Sysfs::new("two", "0-1\n", &two);
        let topology = sysfs.read(None, None).unwrap();
        assert!(!topology.is_emulated);
        let [first, second] = &topology.nodes[..] else { panic!("{topology:?}") };
        assert_eq!(first.cpus, [0, 1, 2, 3, 8, 9, 10, 11]);
        assert_eq!((first.memory_bytes, second.memory_bytes), (1 << 20, 2 << 20));
        assert_eq!((&first.distances[..], &second.distances[..]), (&[10, 21][..], &[21, 10][..]));
        assert_eq!([3, 5, 15, 99].map(|cpu| topology.node_of_cpu(cpu)), [0, 1, 1, 0]);
    }

    #[test]
    fn masks_of_processors_and_memory_leave_the_nodes_that_can_be_used() {
        let four = [("0-1", "10 20 20 20", "9"), ("2-3", "20 10 20 20", "9"), ("4-5", "20 20 10 12", "9")];
        let sysfs = Sysfs::new("masks", "0-2", &four);
        let numbers = |t: &Topology| t.nodes.iter().map(|node| node.number).collect::<Vec<_>>();
        let topology = sysfs.read(Some("1-3"), None).unwrap();
        assert_eq!((numbers(&topology), &topology.nodes[0].cpus[..]), (vec![0, 1], &[1][..]));
        // Processors of a node whose memory is forbidden go to the nearest node.
        let topology = sysfs.read(None, Some("0,2")).unwrap();
        assert_eq!((numbers(&topology), topology.nodes[0].cpus.len()), (vec![0, 2], 4));
        assert_eq!(topology.nodes[1].distances, [20, 10]);
        assert!(sysfs.read(Some("7"), None).unwrap_err().contains("no node"));
    }

    #[test]
    fn a_node_without_memory_gives_its_processors_to_the_nearest() {
        let nodes = [("0", "10 30 30", "9"), ("1", "30 10 12", "9"), ("2", "30 12 10", "0")];
        let topology = Sysfs::new("memoryless", "0-2", &nodes).read(None, None).unwrap();
        assert_eq!(topology.nodes.len(), 2);
        assert_eq!(topology.nodes[1].cpus, [1, 2]);
    }

    #[test]
    fn what_cannot_be_read_is_an_error_that_says_where() {
        let sysfs = Sysfs::new("wrong", "0-1", &[("0-3", "10 20", "9"), ("x-7", "20 10", "9")]);
        let error = sysfs.read(None, None).unwrap_err();
        assert!(error.contains("node1/cpulist") && error.contains("x-7"), "{error}");
        assert!(Topology::read(Path::new("/nowhere"), &Allowed::default()).unwrap_err().contains("/nowhere"));
        for text in ["3-1", "-", "1-", "4294967296", "0-70000"] {
            assert!(numbers(text).is_err(), "{text}");
        }
        assert_eq!(numbers(" \n"), Ok(vec![]));
        assert_eq!(total_bytes("nothing"), u64::MAX);
    }

    #[test]
    fn this_machine_has_a_node_and_an_emulated_one_what_was_asked_for() {
        assert!(!TopologySource::Machine.topology().nodes.is_empty());
        let source: TopologySource = "4x2".parse().unwrap();
        assert_eq!((source.to_string(), source.check()), ("4x2".into(), Ok(())));
        let topology = source.topology();
        assert!(topology.is_emulated && topology.nodes.len() == 4);
        assert_eq!(topology.nodes[3].cpus, [6, 7]);
        for wrong in ["", "2", "x", "0x1", "17x1", "1x65", "2x2x2", "-1x2", "Auto"] {
            assert!(wrong.parse::<TopologySource>().is_err(), "{wrong}");
        }
        assert!(TopologySource::Emulated { nodes: 0, cores: 1 }.check().is_err());
    }
}
