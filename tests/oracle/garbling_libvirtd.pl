#!/usr/bin/perl
# Replaces libvirtd: starts the real libvirtd with another folder, forwards all messages, and corrupts
# each document `domainCapabilities` in its replies. Uses only Perl's core modules, because the agent's
# image has no others.
#
# A message of libvirt's protocol is its length (4 bytes, big-endian, itself included), then
# program, version, procedure, type, serial and status, 4 bytes each, then the payload. Type 1 is
# a reply.
use strict;
use warnings;
use IO::Select;
use IO::Socket::UNIX;

my $folder = $ENV{XDG_RUNTIME_DIR};
my $behind = "$folder/behind";
mkdir $behind, 0700;
my $daemon = fork() // die "fork: $!";
if (!$daemon) {
    $ENV{XDG_RUNTIME_DIR} = $behind;
    exec 'libvirtd', @ARGV or die "libvirtd: $!";
}
# A signal that ends this program also ends the daemon.
$SIG{TERM} = $SIG{INT} = sub { kill 'TERM', $daemon; waitpid $daemon, 0; exit 0 };
my $real = "$behind/libvirt/libvirt-sock";
select undef, undef, undef, 0.01 until -S $real;
mkdir "$folder/libvirt", 0700;
my $listener = IO::Socket::UNIX->new(Local => "$folder/libvirt/libvirt-sock", Listen => 8)
    or die "listen: $!";

my ($ready, %peer, %garble, %pending) = IO::Select->new($listener);
while (my @readable = $ready->can_read) {
    for my $socket (@readable) {
        if ($socket == $listener) {
            my $client = $listener->accept or next;
            my $server = IO::Socket::UNIX->new(Peer => $real) or die "connect: $!";
            @peer{$client, $server} = ($server, $client);
            $garble{$server} = 1;
            $pending{$server} = '';
            $ready->add($client, $server);
            next;
        }
        my $other = $peer{$socket} or next;
        if (!sysread $socket, my $bytes, 65536) {
            $ready->remove($socket, $other);
            delete @peer{$socket, $other};
            close $socket;
            close $other;
            next;
        } elsif (!$garble{$socket}) {
            pass($other, $bytes);
        } else {
            $pending{$socket} .= $bytes;
            while (length $pending{$socket} >= 28) {
                my ($length, $type) = unpack 'N x12 N', $pending{$socket};
                last if length $pending{$socket} < $length;
                my $message = substr $pending{$socket}, 0, $length, '';
                # Keep the length, so that the message stays valid and only the XML is broken.
                $message =~ s{(<domainCapabilities.*</domainCapabilities>)}{garbage($1)}se if $type == 1;
                pass($other, $message);
            }
        }
    }
}

sub garbage { my ($xml) = @_; $xml =~ tr{>"}{<\x01}; return $xml }

sub pass {
    my ($to, $bytes) = @_;
    while (length $bytes) {
        my $written = syswrite $to, $bytes;
        return if !defined $written;
        substr $bytes, 0, $written, '';
    }
}
