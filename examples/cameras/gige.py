"""Lets a GigE Vision camera send to a function: python3 gige.py CAMERA HOST PORT WIDTH HEIGHT Mono8|RGB8

CAMERA is the camera's address or name; arv-tool-0.8 lists them. HOST is the address of the node, as the camera
reaches it. The program must keep running: a camera stops when its controller is gone. It needs Debian's python3-gi
and gir1.2-aravis-0.8.
"""

import socket, struct, sys, threading

import gi

gi.require_version("Aravis", "0.8")
from gi.repository import Aravis

# Registers that are the same in every camera: for how many ms it waits for its controller, and its stream channel 0.
HEARTBEAT, PORT, PACKET_SIZE, ADDRESS = 0x0938, 0x0D00, 0x0D04, 0x0D18

name, host, port, width, height, pixels = sys.argv[1:7]
camera = Aravis.Camera.new(name)
camera.set_region(0, 0, int(width), int(height))
camera.set_pixel_format_from_string(pixels)
camera.set_acquisition_mode(Aravis.AcquisitionMode.CONTINUOUS)
device = camera.get_device()
lost = threading.Event()
device.connect("control-lost", lambda _: lost.set())
device.write_register(HEARTBEAT, 10000)
device.write_register(PACKET_SIZE, 1500)             # of an IP packet; 9000 if all of the network takes jumbo frames
device.write_register(ADDRESS, struct.unpack(">I", socket.inet_aton(host))[0])
device.write_register(PORT, int(port))
camera.start_acquisition()
print("the camera sends", flush=True)
lost.wait()
sys.exit("lost control of the camera, which has stopped; start again")
