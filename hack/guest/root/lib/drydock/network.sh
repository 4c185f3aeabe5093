# Configures addresses by DHCP or from NoCloud network data (version 1 or 2).

network_up() {
    if has network network; then
        # In some documents, all settings are below the key `network`.
        sed 's/^network\.//' $D/network >$D/network.inner
        mv $D/network.inner $D/network
    fi
    get network version
    case $value in
    1) network_version_1 ;;
    2) network_version_2 ;;
    *) for device in $(network_devices); do network_dhcp "$device"; done ;;
    esac
}

network_devices() {
    for entry in /sys/class/net/*; do
        [ -e "$entry/device" ] && echo "${entry##*/}"
    done
}

# A lease that takes long is awaited in the background, so that a guest without a network boots, too.
network_dhcp() {
    ip link set "$1" up
    udhcpc -i "$1" -b -t 3 -T 1 -A 3 -S -x "hostname:$(hostname)" \
        -s /etc/udhcpc/default.script >/dev/null 2>&1
}

network_static() {
    ip link set "$1" up
    ip addr add "$2" dev "$1"
    echo "drydock-guest address $1 $2" >/dev/console
}

network_gateway() {
    ip route replace "$2" dev "$1" 2>/dev/null
    ip route replace default via "$2" dev "$1"
}

# network_find NAME MAC POSITION: stores the device in $device. If the
# guest's devices have other names than in the document, the position counts.
network_find() {
    device=
    position=0
    for candidate in $(network_devices); do
        read -r mac <"/sys/class/net/$candidate/address"
        if [ -n "$2" ]; then
            [ "$mac" = "$(echo "$2" | tr A-F a-f)" ] && device=$candidate
        elif [ "$candidate" = "$1" ]; then
            device=$candidate
        elif [ -z "$device" ] && [ $position = "$3" ]; then
            device=$candidate
        fi
        position=$((position + 1))
    done
    [ -n "$device" ]
}

network_servers() {
    number=0
    while get network "$1.$number"; do
        echo "nameserver $value" >>/etc/resolv.conf
        number=$((number + 1))
    done
}

network_version_2() {
    names=$(sed -n 's/^ethernets\.\([^.]*\)\..*/\1/p' $D/network | uniq)
    order=0
    for name in $names; do
        e=ethernets.$name
        get network "$e.match.macaddress"
        if network_find "$name" "$value" $order; then
            get network "$e.addresses.0" && network_static "$device" "$value"
            get network "$e.addresses.1" && ip addr add "$value" dev "$device"
            get network "$e.gateway4" && network_gateway "$device" "$value"
            if get network "$e.routes.0.via"; then
                via=$value
                get network "$e.routes.0.to"
                case $value in
                default | 0.0.0.0/0) network_gateway "$device" "$via" ;;
                *) ip route replace "$value" via "$via" dev "$device" ;;
                esac
            fi
            network_servers "$e.nameservers.addresses"
            get network "$e.dhcp4" && true_value "$value" && network_dhcp "$device"
        fi
        order=$((order + 1))
    done
}

network_version_1() {
    entry=0
    order=0
    while get network "config.$entry.type"; do
        c=config.$entry
        case $value in
        physical)
            get network "$c.mac_address"; mac_wanted=$value
            get network "$c.name"
            if network_find "$value" "$mac_wanted" $order; then
                network_subnets_1 "$c" "$device"
            fi
            order=$((order + 1))
            ;;
        nameserver) get network "$c.address" && echo "nameserver $value" >>/etc/resolv.conf
            network_servers "$c.address" ;;
        esac
        entry=$((entry + 1))
    done
}

network_subnets_1() {
    subnet=0
    while get network "$1.subnets.$subnet.type"; do
        s=$1.subnets.$subnet
        case $value in
        dhcp | dhcp4) network_dhcp "$2" ;;
        static)
            get network "$s.netmask"; netmask=$value
            get network "$s.address"
            case $value in */*) ;; *) value=$value/${netmask:-24} ;; esac
            network_static "$2" "$value"
            get network "$s.gateway" && network_gateway "$2" "$value"
            network_servers "$s.dns_nameservers"
            ;;
        esac
        subnet=$((subnet + 1))
    done
}
