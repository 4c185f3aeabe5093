# Finds the data that a cloud passes to a guest, and reads single values from it.
# Documents are flattened once, to lines of "path<tab>value": see flatten.awk.
DATA=none
D=/run/data

# Mounts the first file system of one of these labels.
data_mount() {
    for label; do
        device=$(findfs "LABEL=$label" 2>/dev/null) || continue
        mkdir -p $D/disk
        for type in iso9660 vfat; do
            mount -r -t $type "$device" $D/disk 2>/dev/null && return 0
        done
    done
    return 1
}

data_find() {
    if data_mount cidata CIDATA; then
        DATA=nocloud
    elif data_mount config-2 CONFIG-2; then
        DATA=configdrive
    else
        return 1
    fi
}

data_read() {
    mkdir -p $D
    : >$D/user; : >$D/meta; : >$D/network; : >$D/kernel
    data_kernel
    # The data may be on a disk of a SATA controller that is still trying its ports.
    data_find || { wait "$ata"; data_find; } || return
    case $DATA in
    nocloud)
        data_flatten user-data user
        data_flatten meta-data meta
        data_flatten network-config network
        cp $D/disk/user-data $D/user-data 2>/dev/null
        ;;
    configdrive)
        data_flatten openstack/latest/user_data user
        data_flatten openstack/latest/meta_data.json meta
        cp $D/disk/openstack/latest/user_data $D/user-data 2>/dev/null
        ;;
    esac
    umount $D/disk
}

data_flatten() {
    [ -s "$D/disk/$1" ] || return
    # A script is not flattened.
    read -r first <"$D/disk/$1"
    case $first in '#!'*) return ;; esac
    awk -f /lib/drydock/flatten.awk "$D/disk/$1" >"$D/$2"
}

# The kernel command line can have the settings of the drydock map of user-data:
# drydock.count=1s
data_kernel() {
    for word in $(cat /proc/cmdline); do
        case $word in
        drydock.*=*) printf '%s\t%s\n' "${word%%=*}" "${word#*=}" >>$D/kernel ;;
        esac
    done
}

# get DOCUMENT PATH: stores the value in $value; false if there is none.
get() {
    value=
    while IFS='	' read -r path raw; do
        if [ "$path" = "$2" ]; then
            unescape "$raw"
            return 0
        fi
    done <"$D/$1"
    return 1
}

# A character after the text prevents $(...) from removing final newlines.
unescape() {
    value=$(printf '%bx' "$1")
    value=${value%x}
}

# has DOCUMENT PATH: true if there is a value at or below the path.
has() {
    while IFS='	' read -r path raw; do
        case $path in "$2" | "$2".*) return 0 ;; esac
    done <"$D/$1"
    return 1
}

# setting NAME DEFAULT: a value of the drydock map; the command line takes precedence.
setting() {
    get kernel "drydock.$1" || get user "drydock.$1" || value=$2
    [ -n "$value" ]
}

true_value() {
    case $1 in true | True | TRUE | yes | on | 1) return 0 ;; *) return 1 ;; esac
}
