# Prints the output of virsh about this machine, from a dedicated libvirtd, as files after lines `=== name`.
# The script runs in an agent's container, whose root is read-only, and starts libvirtd as guests' pods do:
# in session mode as the user qemu.
set -eu
folder=$(mktemp -d /tmp/virsh.XXXXXX)
trap 'kill $daemon 2>/dev/null || true; wait $daemon 2>/dev/null || true; rm -rf "$folder"' EXIT
mkdir "$folder/run" && chown -R qemu "$folder"
export XDG_RUNTIME_DIR="$folder/run" XDG_CONFIG_HOME="$folder" XDG_CACHE_HOME="$folder" XDG_DATA_HOME="$folder" HOME="$folder"
setpriv --reuid qemu --regid qemu --clear-groups libvirtd --timeout 0 >/dev/null 2>"$folder/log" &
daemon=$!
socket="$folder/run/libvirt/libvirt-sock"
until [ -S "$socket" ]; do
    kill -0 $daemon || { cat "$folder/log" >&2; exit 1; }
    sleep 0.02
done
export LIBVIRT_DEFAULT_URI="qemu+unix:///session?socket=$socket"
about="--machine q35 --arch x86_64 --virttype qemu"
virsh domcapabilities $about >"$folder/domcapabilities.xml"
virsh hypervisor-cpu-baseline --features "$folder/domcapabilities.xml" $about >"$folder/baseline.xml"
virsh capabilities >"$folder/capabilities.xml"
for file in domcapabilities baseline capabilities; do
    printf '\n=== %s.xml\n' "$file"
    cat "$folder/$file.xml"
done
if [ "${1:-}" != brief ]; then
    for file in /usr/share/libvirt/cpu_map/x86_*.xml; do
        printf '\n=== cpu_map/%s\n' "${file##*/}"
        cat "$file"
    done
fi
