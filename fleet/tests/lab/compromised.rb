# In the place of the service, with its user, its certificate and its sandbox: tells what it can do, and hands over to the executor whatever
# is put into its directory.
require 'json'
require 'socket'

Dir.chdir('/var/lib/again-fleet/serve')

# Whether the machine lets us.
def may?
  yield
  true
rescue SystemCallError
  false
end

status = File.read('/proc/self/status')
saw = {
  uid: Process.euid,
  no_new_privs: status[/NoNewPrivs:\s+(\d)/, 1],
  seccomp: status[/Seccomp:\s+(\d)/, 1],
  credentials: %w[CERT KEY CA CRL].map { |name| File.read(ENV.fetch("AGAIN_FLEET_#{name}")).lines.first.chomp },
  fired: UNIXServer.for_fd(3).local_address.unix_path,
  reads_numbers: may? { Dir.children('/var/lib/again-fleet/executor') },
  reads_shadow: may? { File.read('/etc/shadow') },
  writes_programs: may? { File.write('/usr/local/bin/x', '') },
  writes_settings: may? { File.write('/etc/again-fleet.toml', '') },
}
File.write('saw', JSON.generate(saw))

systemd = Socket.new(:UNIX, :DGRAM)
systemd.connect(Socket.sockaddr_un(ENV.fetch('NOTIFY_SOCKET')))
systemd.write('READY=1')
loop do
  systemd.write('WATCHDOG=1')
  if File.exist?('question')
    question = [File.read('question')].pack('H*')
    File.delete('question')
    answer = UNIXSocket.open('/run/again-fleet/executor') do |root|
      root.write(question)
      root.read
    end
    File.write('new', answer.byteslice(8..))
    File.rename('new', 'answer')
  end
  sleep 0.02
end
