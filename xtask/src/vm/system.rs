//! The system of the guests: an initramfs with busybox and the tools of the tests. A guest that has
//! booted from it installs itself on a disk: partitions, a file system, a boot loader.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::machine::{ENDED, KERNEL_ARGUMENTS, READY};
use crate::archive::{Archive, libraries, which};
use crate::cargo::succeeds;
use crate::kernel::Kernel;

/// The programs of this machine that the guests run, and their Debian packages.
const TOOLS: [(&str, &str); 8] = [
    ("sfdisk", "fdisk"),
    ("mke2fs", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("fstrim", "util-linux"),
    ("fio", "fio"),
    ("sqlite3", "sqlite3"),
];

/// The modules that a guest loads before its root is mounted, and one that it loads later.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_blk", "xfs"];

/// The boot loader, and the modules that it needs to read a kernel from ext4.
const GRUB: &str = "/usr/lib/grub/i386-pc";
const GRUB_MODULES: [&str; 6] = ["biosdisk", "part_msdos", "ext2", "linux", "serial", "terminal"];

/// Returns the packages of programs that are missing on this machine.
pub fn missing() -> Vec<&'static str> {
    let others = [
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("dpkg-deb", "dpkg"),
        ("ldd", "libc-bin"),
        ("debugfs", "e2fsprogs"),
        ("grub-mkimage", "grub-common"),
    ];
    let programs = TOOLS.iter().chain(&others);
    let mut missing: Vec<&str> =
        programs.filter(|(program, _)| find(program).is_none()).map(|(_, package)| *package).collect();
    if !Path::new(GRUB).join("boot.img").exists() {
        missing.push("grub-pc-bin");
    }
    missing.dedup();
    missing
}

/// Returns the path of a program, also of one for administrators.
fn find(program: &str) -> Option<PathBuf> {
    let system = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(program));
    which(program).or_else(|| system.into_iter().find(|path| path.is_file()))
}

/// Writes the initramfs of the system to `path`.
pub fn write_initramfs(path: &Path, folder: &Path, kernel: &Kernel) -> Result<(), String> {
    let cannot = |what: &str, error: std::io::Error| format!("{what}: {error}");
    let mut whole = Archive::default();
    add_base(&mut whole, kernel)?;
    for (tool, _) in TOOLS {
        let from = find(tool).ok_or_else(|| format!("{tool} is missing"))?;
        let place = Path::new("usr/sbin").join(tool);
        whole.copy(&place, &from).map_err(|error| cannot(tool, error))?;
        for library in libraries(&from)? {
            if !whole.has(&library) {
                whole.copy(&library, &library).map_err(|error| cannot(tool, error))?;
            }
        }
    }
    whole.link(Path::new("usr/sbin/mkfs.ext4"), "mke2fs");
    if let Ok(bytes) = std::fs::read("/etc/mke2fs.conf") {
        whole.file(Path::new("etc/mke2fs.conf"), &bytes, false);
    }
    whole.file(Path::new("init"), init("").as_bytes(), true);
    // The installed system boots with its own initramfs, the kernel and the boot loader.
    let mut first = Archive::default();
    add_base(&mut first, kernel)?;
    let switch = "mount -t ext4 /dev/vda1 /mnt && exec switch_root /mnt /init installed";
    first.file(Path::new("init"), init(switch).as_bytes(), true);
    whole.file(Path::new("boot/initrd"), &first.end(), false);
    let image = std::fs::read(&kernel.image).map_err(|error| cannot("the kernel", error))?;
    whole.file(Path::new("boot/vmlinuz"), &image, false);
    for (name, bytes) in boot_loader(folder)? {
        whole.file(&Path::new("boot").join(name), &bytes, false);
    }
    std::fs::write(path, whole.end()).map_err(|error| cannot(&path.display().to_string(), error))
}

/// Adds busybox, folders and modules.
fn add_base(archive: &mut Archive, kernel: &Kernel) -> Result<(), String> {
    for folder in ["proc", "sys", "dev", "tmp", "mnt", "data", "more", "etc"] {
        archive.folder(Path::new(folder));
    }
    let busybox = find("busybox").ok_or("busybox is missing")?;
    let copied = archive.copy(Path::new("bin/busybox"), &busybox);
    copied.map_err(|error| format!("{}: {error}", busybox.display()))?;
    for (number, file) in kernel.modules(&MODULES)?.iter().enumerate() {
        // Not stripped: the kernel cannot load a module without its symbols.
        let bytes = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        archive.file(&PathBuf::from(format!("modules/{number:02}.ko")), &bytes, false);
    }
    archive.link(Path::new("bin/sh"), "busybox");
    Ok(())
}

/// The first process: mounts, loads modules, and runs what the console says. `switch` is run before
/// the console is read.
fn init(switch: &str) -> String {
    format!(
        "#!/bin/sh\n\
         export PATH=/usr/sbin:/sbin:/usr/bin:/bin\n\
         /bin/busybox mount -t proc proc /proc\n/bin/busybox mount -t sysfs sys /sys\n\
         /bin/busybox mount -t devtmpfs dev /dev\n\
         [ -e /bin/ls ] || /bin/busybox --install -s /bin\n\
         [ \"$1\" = installed ] || for module in /modules/*.ko; do insmod $module; done\n\
         {switch}\n\
         mount -t tmpfs tmp /tmp\n\
         exec 0</dev/ttyS0 1>/dev/ttyS0 2>&1\n\
         stty -echo\n\
         echo {READY}\n\
         while read -r line; do eval \"$line\"; echo \"{ENDED}$?\"; done\n"
    )
}

/// Returns the two parts of the boot loader: the first sector, and the sectors that follow.
fn boot_loader(folder: &Path) -> Result<[(&'static str, Vec<u8>); 2], String> {
    let (config, core) = (folder.join("grub.cfg"), folder.join("core.img"));
    let text = format!(
        "serial --unit=0 --speed=115200\nterminal_output serial\nset root=(hd0,msdos1)\n\
         linux /boot/vmlinuz {KERNEL_ARGUMENTS}\ninitrd /boot/initrd\nboot\n"
    );
    std::fs::write(&config, text).map_err(|error| format!("grub.cfg: {error}"))?;
    let mut make = Command::new("grub-mkimage");
    make.args(["-O", "i386-pc", "-p", "(hd0,msdos1)/boot", "-d", GRUB, "-c"]).arg(&config);
    if !succeeds(make.arg("-o").arg(&core).args(GRUB_MODULES)) {
        return Err("grub-mkimage makes no boot loader".into());
    }
    let read = |path: PathBuf| std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()));
    Ok([("boot.img", read(Path::new(GRUB).join("boot.img"))?), ("core.img", read(core)?)])
}

/// The commands that install the running system on /dev/vda.
pub const INSTALL: [&str; 7] = [
    "echo 'start=2048, type=83, bootable' | sfdisk -q --label dos /dev/vda",
    "mkfs.ext4 -q -L root /dev/vda1",
    "mount -t ext4 /dev/vda1 /mnt",
    "cp -a /bin /usr /lib /lib64 /etc /boot /init /modules /mnt/ && mkdir -p /mnt/proc /mnt/sys /mnt/dev \
     /mnt/tmp /mnt/mnt /mnt/data /mnt/more",
    // The partition table is the last 66 bytes of the first sector. The core follows it.
    "dd if=/boot/boot.img of=/dev/vda bs=440 count=1 conv=notrunc && \
     dd if=/boot/core.img of=/dev/vda bs=512 seek=1 conv=notrunc",
    "umount /mnt && sync",
    "e2fsck -f -n /dev/vda1",
];
