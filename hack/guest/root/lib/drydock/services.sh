# Starts the services that a test requests in the drydock map of user-data.

services_start() {
    setting count "" && beacon count "$value" >/dev/console &
    if setting udp ""; then
        target=$value
        setting udp-interval 1s
        beacon udp "$target" "$value" &
    fi
    if setting agent ""; then
        services_agent
    fi
    if setting write ""; then
        interval=$value
        device=$(findfs LABEL=DRYDOCK) && mount -t vfat -o sync "$device" /boot
        beacon write /boot/ticks "$interval" >/dev/console &
    fi
    if setting http ""; then
        mkdir -p /run/www
        hostname >/run/www/index.html
        echo ok >/run/www/healthz
        httpd -p "$value" -h /run/www
    fi
    if setting dirty ""; then
        size=$value
        setting dirty-interval 1s
        beacon dirty "$size" "$value" >/dev/console &
    fi
    setting listen "" && beacon listen "$value" &
    setting checksum "" && services_checksum "$value" &
}

# Debian's QEMU guest agent, which is on the disk and not in the initrd, because few guests have memory to spare.
services_agent() {
    for port in /sys/class/virtio-ports/*; do
        [ "$(cat "$port/name")" = org.qemu.guest_agent.0 ] || continue
        device=$(findfs LABEL=DRYDOCK) && mount -t vfat -o ro "$device" /mnt || return
        mkdir /run/agent
        tar -xzf /mnt/agent.tgz -C /run/agent
        umount /mnt
        while read -r module; do
            insmod "/run/agent/$module" 2>/dev/null
        done </run/agent/order
        loader=$(ls /run/agent/ld-linux*)
        "$loader" --library-path /run/agent /run/agent/qemu-ga -p "/dev/${port##*/}" -t /run >/dev/console 2>&1 &
    done
}

services_checksum() {
    while :; do
        checksum >/dev/console
        sleep "${1%s}"
    done
}
