# What a test can make the guest do: the drydock map of user-data.

services_start() {
    setting count "" && beacon count "$value" >/dev/console &
    if setting udp ""; then
        target=$value
        setting udp-interval 1s
        beacon udp "$target" "$value" &
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

services_checksum() {
    while :; do
        checksum >/dev/console
        sleep "${1%s}"
    done
}
