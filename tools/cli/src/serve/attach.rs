//! Commands and settings that attach to an export, ready to be pasted: for NBD clients, and for
//! virtual machines.

use std::fmt::Write;
use std::path::Path;

use octavo_block::Address;

use crate::config::ExportSection;

/// The export as the URI that NBD's programs share.
pub fn uri(address: &Address, export: &str) -> String {
    let export = percent_encoded(export);
    match address {
        Address::Unix(path) => {
            format!("nbd+unix:///{export}?socket={}", percent_encoded(&path.to_string_lossy()))
        }
        Address::Tcp(address) => format!("nbd://{address}/{export}"),
    }
}

/// The commands for an export of this length, each beside its purpose, and an option for QEMU. No
/// command writes to the export: people paste without reading.
pub fn commands(address: &Address, export: &ExportSection, len_bytes: u64) -> String {
    let uri = uri(address, export.name.get_ref());
    // QEMU's option ends at a comma. The URI has none: they are encoded.
    let access = if export.read_only { "read-only=on" } else { "discard=unmap" };
    let drive = shell_quoted(&format!("file={uri},format=raw,if=virtio,{access}"));
    let uri = shell_quoted(&uri);
    let read_only = if export.read_only { " -R" } else { "" };
    let client = match address {
        Address::Unix(path) => format!("-unix {}", shell_quoted(&path.to_string_lossy())),
        Address::Tcp(address) => format!("{} {}", address.ip(), address.port()),
    };
    let name = shell_quoted(export.name.get_ref());
    let size = len_bytes.min(1 << 30);
    let mut text = String::new();
    for (purpose, command) in [
        ("what it is", format!("nbdinfo {uri}")),
        ("its first bytes", format!("qemu-io -r -f raw -c 'read -v 0 512' {uri}")),
        ("copy it", format!("qemu-img convert -p -f raw -O raw {uri} copy.raw")),
        (
            "load it",
            format!(
                "fio --name=octavo --ioengine=nbd --uri={uri} --rw=randread --bs=4k --iodepth=32 \
                 --size={size} --time_based --runtime=10"
            ),
        ),
        ("as a disk", format!("sudo nbd-client {client} -N {name}{read_only} /dev/nbd0")),
        ("QEMU's option", format!("-drive {drive}")),
    ] {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {purpose:<16} {command}");
    }
    text
}

/// The commands for an export whose clients must use TLS. HOST is any name of the server that its
/// certificate has, DIR a directory with the client's certificate.
pub fn over_tls(address: &Address, export: &ExportSection) -> String {
    let Address::Tcp(address) = address else { return String::new() };
    let (port, name) = (address.port(), export.name.get_ref());
    let uri = format!("nbds://HOST:{port}/{}?tls-certificates=DIR", percent_encoded(name));
    let uri = shell_quoted(&uri);
    let credentials = shell_quoted("tls-creds-x509,id=tls0,endpoint=client,dir=DIR");
    // A comma ends a value of an option, unless it is doubled.
    let node = format!(
        "driver=nbd,node-name=disk0,server.type=inet,server.host=HOST,server.port={port},export={},tls-creds=tls0",
        name.replace(',', ",,")
    );
    format!(
        "  HOST is a name of this machine in its certificate; DIR has ca-cert.pem, client-cert.pem, client-key.pem\n  \
         what it is       nbdinfo {uri}\n  \
         copy it          nbdcopy {uri} copy.raw\n  \
         QEMU's options   -object {credentials} \\\n                   -blockdev {}\n",
        shell_quoted(&node)
    )
}

/// The options with which QEMU attaches the export at a vhost-user socket. docs/VM.md prints the
/// same.
pub fn vhost_user(socket: &Path, export: &ExportSection) -> String {
    // A comma ends a value of an option, unless it is doubled.
    let path = socket.to_string_lossy().replace(',', ",,");
    let chardev = shell_quoted(&format!("socket,id=octavo0,path={path},reconnect=1"));
    let queues = export.vhost().queues;
    format!(
        "  shared memory    -m 4G -object memory-backend-memfd,id=mem,size=4G,share=on -numa node,memdev=mem\n  \
         the disk         -chardev {chardev} \\\n                   \
         -device vhost-user-blk-pci,chardev=octavo0,num-queues={queues}\n"
    )
}

/// The export at a vhost-user socket as a disk of a libvirt domain, whose memory is shared.
/// docs/VM.md prints the same.
pub fn libvirt_vhost_user(socket: &Path, export: &ExportSection) -> String {
    let (path, queues) = (xml_quoted(&socket.to_string_lossy()), export.vhost().queues);
    format!(
        "  <disk type='vhostuser' device='disk'>\n    <driver name='qemu' type='raw' queues='{queues}'/>\n    \
         <source type='unix' path='{path}'>\n      <reconnect enabled='yes' timeout='1'/>\n    </source>\n    \
         <target dev='vda' bus='virtio'/>\n  </disk>\n"
    )
}

/// The export as a disk of a libvirt domain: an element for its `<devices>`.
pub fn libvirt_disk(address: &Address, export: &ExportSection) -> String {
    let host = match address {
        Address::Unix(path) => format!("transport='unix' socket='{}'", xml_quoted(&path.to_string_lossy())),
        Address::Tcp(address) => format!("name='{}' port='{}'", address.ip(), address.port()),
    };
    // An export with the empty name is the default: clients name none.
    let name = match export.name.get_ref().as_str() {
        "" => String::new(),
        name => format!(" name='{}'", xml_quoted(name)),
    };
    let (discard, read_only) =
        if export.read_only { ("", "    <readonly/>\n") } else { (" discard='unmap'", "") };
    format!(
        "  <disk type='network' device='disk'>\n    <driver name='qemu' type='raw'{discard}/>\n    <source protocol='nbd'{name}>\n      \
         <host {host}/>\n    </source>\n    <target dev='vdb' bus='virtio'/>\n{read_only}  </disk>\n"
    )
}

/// Text for an attribute of XML in single quotes.
fn xml_quoted(text: &str) -> String {
    let quoted = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    quoted.replace('\'', "&apos;").replace('"', "&quot;")
}

/// Encodes everything but letters, digits, slashes and a few marks as `%41`.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Quotes a text so that a shell reads it as one word.
pub fn shell_quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/:+=,".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_and_paths_become_one_word_of_a_shell() {
        let address = Address::Unix("/tmp/it's here/nbd.sock".into());
        assert_eq!(uri(&address, "a b&c"), "nbd+unix:///a%20b%26c?socket=/tmp/it%27s%20here/nbd.sock");
        assert_eq!(shell_quoted("it's"), "'it'\\''s'");
        assert_eq!(shell_quoted("/plain/path"), "/plain/path");
        assert_eq!(
            uri(&Address::Tcp("127.0.0.1:10809".parse().unwrap()), "vm1"),
            "nbd://127.0.0.1:10809/vm1"
        );
    }
}
