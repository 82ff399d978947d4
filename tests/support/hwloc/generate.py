#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the XML of the machines that tests/unit/test_select.c places ranks on, as hwloc 2 would export them.

usage: generate.py FOLDER
"""
import os
import sys

GPU = "0302 [10de:2335] [10de:18be] a1"
NIC = "0207 [15b3:1021] [15b3:0023] 00"
ETHERNET = "0200 [1af4:1000] [1af4:0001] 00"
SWITCH = "0680 [10de:22a3] [10de:1796] a1"
PORT = "0604 [1000:c030] [1000:0100] b0"
DISK = "0108 [144d:a80a] [144d:a801] 00"


class Machine:
    def __init__(self, packages, cores):
        self.packages, self.cores = packages, cores
        self.lines, self.next_index = [], 1
        self.os_devices = {}

    def index(self):
        self.next_index += 1
        return self.next_index

    def add(self, depth, text):
        self.lines.append("  " * depth + text)

    def sets(self, first, count, node_first, node_count):
        cpus = "0x%08x" % (((1 << count) - 1) << first)
        nodes = "0x%08x" % (((1 << node_count) - 1) << node_first)
        return 'cpuset="%s" complete_cpuset="%s" nodeset="%s" complete_nodeset="%s"' % (cpus, cpus, nodes, nodes)

    def pci(self, depth, bus, kind, name=None, os_type=None, subtype=None):
        extra = ' subtype="%s"' % subtype if subtype and not name else ""
        index = self.index()
        head = '<object type="PCIDev" gp_index="%d"%s pci_busid="%s" pci_type="%s" pci_link_speed="0.000000"' % (
            index, extra, bus, kind)
        if name is None:
            self.add(depth, head + "/>")
            self.os_devices[bus] = ("PCIDev", index)
            return
        self.add(depth, head + ">")
        extra = ' subtype="%s"' % subtype if subtype else ""
        index = self.index()
        self.add(depth + 1, '<object type="OSDev" gp_index="%d"%s name="%s" osdev_type="%d"/>' % (index, extra, name, os_type))
        self.add(depth, "</object>")
        self.os_devices[name] = ("OSDev", index)

    def gpu(self, depth, bus, number=None):
        """With a number: hwloc saw it through NVML. Without: as a PCI device alone."""
        if number is None:
            self.pci(depth, bus, GPU)
        else:
            self.pci(depth, bus, GPU, "nvml%d" % number, 1, "NVML")

    def nic(self, depth, bus, name, kind=NIC):
        self.pci(depth, bus, kind, name, 3 if kind == NIC else 2, "OpenFabrics" if kind == NIC else None)

    def host_bridge(self, depth, first, last, contents):
        self.add(depth, '<object type="Bridge" gp_index="%d" bridge_type="0-1" depth="0" bridge_pci="0000:[%02x-%02x]">' % (
            self.index(), first, last))
        contents(depth + 1)
        self.add(depth, "</object>")

    def bridge(self, depth, bus, first, last, contents):
        self.add(depth, '<object type="Bridge" gp_index="%d" bridge_type="1-1" depth="1" bridge_pci="0000:[%02x-%02x]" '
                 'pci_busid="%s" pci_type="%s" pci_link_speed="0.000000">' % (self.index(), first, last, bus, PORT))
        contents(depth + 1)
        self.add(depth, "</object>")

    def write(self, path, devices, nvlink=None):
        total = self.packages * self.cores
        self.add(0, '<?xml version="1.0" encoding="UTF-8"?>')
        self.add(0, '<!DOCTYPE topology SYSTEM "hwloc2.dtd">')
        self.add(0, '<topology version="2.0">')
        self.add(1, '<object type="Machine" os_index="0" %s allowed_cpuset="0x%08x" allowed_nodeset="0x%08x" gp_index="1">' % (
            self.sets(0, total, 0, self.packages), (1 << total) - 1, (1 << self.packages) - 1))
        for package in range(self.packages):
            first = package * self.cores
            sets = self.sets(first, self.cores, package, 1)
            self.add(2, '<object type="Package" os_index="%d" %s gp_index="%d">' % (package, sets, self.index()))
            self.add(3, '<object type="NUMANode" os_index="%d" %s gp_index="%d" local_memory="1073741824">' % (
                package, sets, self.index()))
            self.add(4, '<page_type size="4096" count="262144"/>')
            self.add(3, "</object>")
            for core in range(first, first + self.cores):
                sets = self.sets(core, 1, package, 1)
                self.add(3, '<object type="Core" os_index="%d" %s gp_index="%d">' % (core, sets, self.index()))
                self.add(4, '<object type="PU" os_index="%d" %s gp_index="%d"/>' % (core, sets, self.index()))
                self.add(3, "</object>")
            devices(3, package)
            self.add(2, "</object>")
        self.add(1, "</object>")
        if nvlink:
            self.distances(*nvlink)
        self.add(0, "</topology>")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(self.lines) + "\n")

    def distances(self, names, value):
        objects = [self.os_devices[name] for name in names]
        self.add(1, '<distances2hetero nbobjs="%d" kind="25" name="NVLinkBandwidth">' % len(objects))
        indexes = " ".join("%s:%d" % pair for pair in objects) + " "
        self.add(2, '<indexes length="%d">%s</indexes>' % (len(indexes), indexes))
        for row in names:
            values = " ".join(str(value(row, column)) for column in names) + " "
            self.add(2, '<u64values length="%d">%s</u64values>' % (len(values), values))
        self.add(1, "</distances2hetero>")


def nvlink_server(path):
    """2 packages of 4 PCIe switches, each with a GPU and a NIC; the GPUs meet in 4 NVSwitches. Also a disk."""
    machine = Machine(2, 4)
    switches = ["0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0"]

    def devices(depth, package):
        if package == 0:
            def plane(d):
                for number, bus in enumerate(switches):
                    machine.bridge(d, "0000:04:%02x.0" % number, 5 + number, 5 + number,
                                   lambda e, bus=bus: machine.pci(e, bus, SWITCH, subtype="NVSwitch"))
                machine.bridge(d, "0000:04:1f.0", 9, 9, lambda e: machine.pci(e, "0000:09:00.0", DISK))
            machine.host_bridge(depth, 4, 9, plane)
        for slot in range(4):
            number = package * 4 + slot
            base = 0x10 + 0x10 * number

            def below(d, number=number, base=base):
                machine.bridge(d, "0000:%02x:00.0" % (base + 2), base + 3, base + 3,
                               lambda e: machine.gpu(e, "0000:%02x:00.0" % (base + 3), number))
                machine.bridge(d, "0000:%02x:01.0" % (base + 2), base + 4, base + 4,
                               lambda e: machine.nic(e, "0000:%02x:00.0" % (base + 4), "mlx5_%d" % number))
            machine.host_bridge(depth, base, base + 4, lambda d, base=base, below=below: machine.bridge(
                d, "0000:%02x:01.0" % base, base + 1, base + 4, lambda e: machine.bridge(
                    e, "0000:%02x:00.0" % (base + 1), base + 2, base + 4, below)))

    gpus = ["nvml%d" % number for number in range(8)]

    def bandwidth(row, column):
        if row == column:
            return 1000000
        return 112500 if (row in gpus) != (column in gpus) else 0
    machine.write(path, devices, (gpus + switches, bandwidth))


def pcie_server(path):
    """GPUs at every distance: 0 and 1 on one switch, 2 on a switch behind it, 3 on another port of the host bridge, 4 on
    another host bridge, 5 on the other package. A NIC beside GPU 0."""
    machine = Machine(2, 2)

    def cascade(depth):
        machine.bridge(depth, "0000:12:00.0", 0x13, 0x13, lambda d: machine.gpu(d, "0000:13:00.0", 0))
        machine.bridge(depth, "0000:12:01.0", 0x14, 0x14, lambda d: machine.gpu(d, "0000:14:00.0", 1))
        machine.bridge(depth, "0000:12:02.0", 0x15, 0x15, lambda d: machine.nic(d, "0000:15:00.0", "mlx5_0"))
        machine.bridge(depth, "0000:12:03.0", 0x16, 0x18, lambda d: machine.bridge(
            d, "0000:16:00.0", 0x17, 0x18, lambda e: machine.bridge(
                e, "0000:17:00.0", 0x18, 0x18, lambda f: machine.gpu(f, "0000:18:00.0", 2))))

    def first_host_bridge(depth):
        machine.bridge(depth, "0000:10:01.0", 0x11, 0x18, lambda d: machine.bridge(d, "0000:11:00.0", 0x12, 0x18, cascade))
        machine.bridge(depth, "0000:10:02.0", 0x19, 0x19, lambda d: machine.gpu(d, "0000:19:00.0", 3))

    def devices(depth, package):
        if package == 1:
            machine.host_bridge(depth, 0x80, 0x81, lambda d: machine.bridge(
                d, "0000:80:01.0", 0x81, 0x81, lambda e: machine.gpu(e, "0000:81:00.0", 5)))
            return
        machine.host_bridge(depth, 0x10, 0x19, first_host_bridge)
        machine.host_bridge(depth, 0x20, 0x21, lambda d: machine.bridge(
            d, "0000:20:01.0", 0x21, 0x21, lambda e: machine.gpu(e, "0000:21:00.0", 4)))
    machine.write(path, devices)


def flat_vm(path):
    """A virtual machine that shows four GPUs and an Ethernet card side by side on one bus, and nothing of what is under them."""
    machine = Machine(1, 4)

    def bus(depth):
        machine.nic(depth, "0000:00:03.0", "eth0", ETHERNET)
        for slot in range(4):
            machine.gpu(depth, "0000:00:%02x.0" % (5 + slot))
    machine.write(path, lambda depth, package: machine.host_bridge(depth, 0, 0, bus))


def fakecuda_host(path):
    """Where the first two devices of the software driver (tests/support/fakecuda) could sit: on two host bridges of one package."""
    machine = Machine(1, 2)

    def devices(depth, package):
        for base in (0x18, 0x28):
            machine.host_bridge(depth, base, base + 1, lambda d, base=base: machine.bridge(
                d, "0000:%02x:01.0" % base, base + 1, base + 1, lambda e: machine.gpu(e, "0000:%02x:00.0" % (base + 1))))
    machine.write(path, devices)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    nvlink_server(os.path.join(sys.argv[1], "nvlink8.xml"))
    pcie_server(os.path.join(sys.argv[1], "pcie6.xml"))
    fakecuda_host(os.path.join(sys.argv[1], "fakecuda2.xml"))
    flat_vm(os.path.join(sys.argv[1], "flat_vm.xml"))


main()
