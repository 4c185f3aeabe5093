// KubeVirt's virtctl: its own commands, put together as its root.go does, without `template`, `vmexport`, `memory-dump`
// and `image-upload`, which are for APIs that Drydock does not have.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/coreos/go-semver/semver"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"kubevirt.io/client-go/kubecli"
	"kubevirt.io/client-go/log"
	clientversion "kubevirt.io/client-go/version"
	"kubevirt.io/kubevirt/pkg/virtctl/adm"
	"kubevirt.io/kubevirt/pkg/virtctl/clientconfig"
	"kubevirt.io/kubevirt/pkg/virtctl/configuration"
	"kubevirt.io/kubevirt/pkg/virtctl/console"
	"kubevirt.io/kubevirt/pkg/virtctl/create"
	"kubevirt.io/kubevirt/pkg/virtctl/credentials"
	"kubevirt.io/kubevirt/pkg/virtctl/expose"
	"kubevirt.io/kubevirt/pkg/virtctl/guestfs"
	"kubevirt.io/kubevirt/pkg/virtctl/objectgraph"
	"kubevirt.io/kubevirt/pkg/virtctl/pause"
	"kubevirt.io/kubevirt/pkg/virtctl/portforward"
	"kubevirt.io/kubevirt/pkg/virtctl/reset"
	"kubevirt.io/kubevirt/pkg/virtctl/scp"
	"kubevirt.io/kubevirt/pkg/virtctl/softreboot"
	"kubevirt.io/kubevirt/pkg/virtctl/ssh"
	"kubevirt.io/kubevirt/pkg/virtctl/templates"
	"kubevirt.io/kubevirt/pkg/virtctl/unpause"
	"kubevirt.io/kubevirt/pkg/virtctl/usbredir"
	"kubevirt.io/kubevirt/pkg/virtctl/version"
	"kubevirt.io/kubevirt/pkg/virtctl/vm"
	"kubevirt.io/kubevirt/pkg/virtctl/vnc"
)

func root() *cobra.Command {
	cobra.AddTemplateFunc("ProgramName", func() string { return "virtctl" })
	cobra.AddTemplateFunc("prepare", func(text string) string {
		return strings.ReplaceAll(text, "{{ProgramName}}", "virtctl")
	})
	command := &cobra.Command{Use: "virtctl", SilenceUsage: true, SilenceErrors: true}
	command.PersistentFlags().AddFlag(pflag.PFlagFromGoFlag(flag.CommandLine.Lookup("v")))
	command.SetUsageTemplate(templates.MainUsageTemplate())
	command.SetOut(os.Stdout)
	config := kubecli.DefaultClientConfig(command.PersistentFlags())
	command.SetContext(clientconfig.NewContext(context.Background(), config))
	command.AddCommand(
		configuration.NewListPermittedDevices(),
		console.NewCommand(),
		usbredir.NewCommand(),
		vnc.NewCommand(),
		scp.NewCommand(),
		ssh.NewCommand(),
		portforward.NewCommand(),
		vm.NewStartCommand(),
		vm.NewStopCommand(),
		vm.NewRestartCommand(),
		vm.NewMigrateCommand(),
		vm.NewMigrateCancelCommand(),
		vm.NewGuestOsInfoCommand(),
		vm.NewUserListCommand(),
		vm.NewFSListCommand(),
		vm.NewAddVolumeCommand(),
		vm.NewRemoveVolumeCommand(),
		vm.NewExpandCommand(),
		vm.NewEvacuateCancelCommand(),
		pause.NewCommand(),
		unpause.NewCommand(),
		softreboot.NewSoftRebootCommand(),
		reset.NewResetCommand(),
		expose.NewCommand(),
		version.VersionCommand(),
		guestfs.NewGuestfsShellCommand(),
		create.NewCommand(),
		credentials.NewCommand(),
		adm.NewCommand(),
		objectgraph.NewCommand(),
	)
	return command
}

// After a failed command virtctl compares its version with the server's, and prints what is wrong with that first.
func compareVersions(ctx context.Context) error {
	client, err := semver.NewVersion(strings.TrimPrefix(clientversion.Get().GitVersion, "v"))
	if err != nil {
		return err
	}
	virt, _, _, err := clientconfig.ClientAndNamespaceFromContext(ctx)
	if err != nil {
		return err
	}
	found, err := virt.ServerVersion().Get()
	if err != nil {
		return err
	}
	server, err := semver.NewVersion(strings.TrimPrefix(found.GitVersion, "v"))
	if err != nil {
		return err
	}
	if client.Major != server.Major || client.Minor != server.Minor {
		return fmt.Errorf("client version %s, server version %s", client, server)
	}
	return nil
}

func main() {
	log.InitializeLogging("virtctl")
	command := root()
	if err := command.Execute(); err != nil {
		if versions := compareVersions(command.Context()); versions != nil {
			command.PrintErrln(versions)
		}
		command.PrintErrln(err)
		os.Exit(1)
	}
}
