//! [`Images`]: the objects that several exports use. The exports of a share group whose paths lead
//! to one file or device are *members* of one image: they read the pages of one object.
//!
//! The first member opens the object, and the last one that leaves closes it. An image belongs to
//! one group: nothing outside the group reads its pages, whatever else has the same file open.
//! Members are read-only, so no page of an image is ever dirty.

use std::path::Path;
use std::sync::Mutex;

use octavo::{Object, Partition};

use super::build::{self, Opener};
use crate::config::{ExportSection, check};
use crate::control::report::SharedImage;
use crate::lock::lock;

/// All images that have members.
#[derive(Default)]
pub struct Images(Mutex<Vec<Image>>);

/// An object that the members of a group share.
struct Image {
    /// The group.
    share: String,
    /// The partition that caches it.
    partition: String,
    /// Equal for all paths of its store.
    identity: (u64, u64),
    object: Object,
    /// The names of its exports. A reload that adds an export again has its name twice for a
    /// moment.
    members: Vec<String>,
    /// Its store is watched for changes by other programs.
    is_watched: bool,
}

impl Images {
    /// Makes an export a member of the image that its path leads to, and opens the image if the
    /// group does not have it. Callers hold the catalog's lists, so no other call opens the same
    /// image. The error is a sentence.
    pub fn join(
        &self,
        share: &str,
        section: &ExportSection,
        partition: &Partition,
        opener: Opener<'_>,
    ) -> Result<Object, String> {
        let path = section.path.get_ref();
        let examine = || check::identity(path).map_err(|why| format!("\"{}\" {why}", path.display()));
        let (identity, member) = (examine()?, section.name.get_ref().clone());
        let is_it = |image: &&mut Image| {
            image.share == share && image.identity == identity && image.partition == partition.name()
        };
        if let Some(image) = lock(&self.0).iter_mut().find(is_it) {
            image.members.push(member);
            return Ok(image.object.clone());
        }
        // Without the lock: a store may take long to open, and `octavo ctl stat` needs the list.
        let object = build::object(section, &name_of(share, path, partition), partition, opener)?;
        if examine()? != identity {
            // It is read-only, so closing it loses nothing.
            let _ = object.close();
            return Err(format!("\"{}\" was replaced while it was opened; try again", path.display()));
        }
        lock(&self.0).push(Image {
            share: share.into(),
            partition: partition.name().into(),
            identity,
            object: object.clone(),
            members: vec![member],
            is_watched: false,
        });
        Ok(object)
    }

    /// Ends an export's use of an object. Returns whether no other export uses it: the caller then
    /// closes it.
    pub fn leave(&self, member: &str, object: &Object) -> bool {
        let mut images = lock(&self.0);
        let Some(at) = images.iter().position(|image| image.object.is_same(object)) else { return true };
        let members = &mut images[at].members;
        if let Some(name) = members.iter().position(|name| name == member) {
            members.remove(name);
        }
        let is_last = members.is_empty();
        if is_last {
            images.remove(at);
        }
        is_last
    }

    /// Whether exports share this object.
    pub fn has(&self, object: &Object) -> bool {
        lock(&self.0).iter().any(|image| image.object.is_same(object))
    }

    /// Whether the store of this object is to be watched: true once for each image.
    pub fn is_to_be_watched(&self, object: &Object) -> bool {
        let mut images = lock(&self.0);
        let image = images.iter_mut().find(|image| image.object.is_same(object));
        image.is_none_or(|image| !std::mem::replace(&mut image.is_watched, true))
    }

    /// The images with the names of their exports, for reports.
    pub fn list(&self) -> Vec<SharedImage> {
        let images = lock(&self.0);
        let shown = images.iter().map(|image| SharedImage {
            share: image.share.clone(),
            object: image.object.clone(),
            exports: image.members.clone(),
        });
        shown.collect()
    }
}

/// The name of an image's object, such as `debian/trixie.raw`, which no other object of the
/// partition has.
fn name_of(share: &str, path: &Path, partition: &Partition) -> String {
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    // A path may have characters that a name cannot have.
    let visible = |c: char| if octavo::is_visible(c) { c } else { '?' };
    let file: String = file.trim().chars().map(visible).collect();
    let objects = partition.objects();
    let numbers = (1..).map(|number| match number {
        1 => format!("{share}/{file}"),
        _ => format!("{share}/{file} ({number})"),
    });
    let free = |name: &String| !objects.iter().any(|object| object.name() == name);
    numbers.into_iter().find(free).expect("a partition has fewer objects than there are numbers")
}
