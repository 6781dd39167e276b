# frozen_string_literal: true

require 'json'
require 'puppet'
require 'securerandom'
require 'socket'

module PuppetX; end
module PuppetX::Again; end
module PuppetX::Again::Events; end

# Spool file to which a run writes its lines for the service, and the wakeup socket of the service. The service reads the file; `again-fleet
# executor` renames it to `NAME@told` when all of it is published, and removes it at its first start after another hour.
class PuppetX::Again::Events::Spool
  # Limits in bytes: `run`, the file of one run, of which `kept` is reserved for the last line; `line`, one line, which must not be longer
  # than the service reads (`LONGEST_READ` of fleet/src/spool.rs); `together`, all files; `waiting`, lines in memory while there is no
  # directory. `files` is the number of files.
  def self.bounds
    { run: 16 << 20, kept: 256 << 10, line: 256 << 10, together: 64 << 20, files: 100, waiting: 1 << 20 }
  end

  # Number of lines that waited in memory for the directory and could not be written to the file.
  attr_reader :unwritten

  # The block returns the first line. Its argument is the number of unpublished runs that had to be removed to make room.
  def initialize(directory, socket, &first)
    @directory = directory
    @socket = socket
    @first = first
    @bounds = self.class.bounds
    @size = 0
    @waiting = []
    @unwritten = 0
  end

  # Adds a line with one write. Returns whether it is in the file or waits in memory: this very run may create the directory later.
  def add(line, last: false)
    text = "#{line}\n"
    return false if text.bytesize > @bounds[:line]
    return false unless last || @size + text.bytesize <= @bounds[:run] - @bounds[:kept]

    create unless @file
    written = @file ? write(text) : wait(text)
    ring(last) if @file
    written
  end

  # Closes the file and the socket. Unlocks the file first, because other processes may have inherited its descriptor.
  def close
    unless @file || @waiting.empty?
      warn(@broken || "there is no #{@directory}")
    end
    @file&.flock(File::LOCK_UN)
    [@file, @bell].each { |open| open.close if open }
  rescue SystemCallError, IOError => e
    warn(e.message)
  end

  # Logs the first error as a warning, and no others.
  def warn(what)
    Puppet.warning("not all events of this run are told: #{what}") unless @warned
    @warned = true
  end

  private

  def wait(text)
    return false if @broken || @size + text.bytesize > @bounds[:waiting]

    @size += text.bytesize
    @waiting << text
    true
  end

  def create
    return if @broken

    name = "#{Process.clock_gettime(Process::CLOCK_REALTIME, :millisecond)}-#{SecureRandom.hex(16)}"
    lost = make_room
    # Under a name that the service ignores until the file is locked: to the service a file without a lock belongs to a run that has ended.
    new = "new-#{name}"
    @file = File.open("#{@directory}/#{new}", File::WRONLY | File::CREAT | File::EXCL | File::NOFOLLOW | File::APPEND, 0o640)
    @file.flock(File::LOCK_EX | File::LOCK_NB)
    # The umask may have removed permissions.
    @file.chmod(0o640)
    @size = 0
    raise IOError, 'there is no room for the first line' unless write("#{@first.call(lost)}\n")

    File.rename("#{@directory}/#{new}", "#{@directory}/#{name}")

    @unwritten = @waiting.count { |text| !write(text) }
    @waiting = []
  rescue Errno::ENOENT
    nil
  rescue SystemCallError, IOError => e
    give_up(new, e.message)
  end

  # Removes a file that could not be set up, since it is invalid without its first line, and writes no more lines.
  def give_up(name, why)
    @broken = why
    warn(why)
    return unless @file

    remove("#{@directory}/#{name}")
    @file.close
    @file = nil
  end

  # Removes files until there is room for one more: published ones first, then unpublished ones, the oldest first. Returns how many runs may
  # be lost: the unpublished files, and the runs that were lost to make room for them.
  def make_room
    files = Dir.children(@directory).grep(%r{\A(new-)?\d+-\h{32}(@told)?\z})
    files = files.sort_by { |name| [told?(name) ? 0 : 1, name.delete_prefix('new-').to_i, name] }
    sizes = files.map { |name| size("#{@directory}/#{name}") }
    together = sizes.sum
    gone = lost = 0
    while gone < files.size && (files.size - gone >= @bounds[:files] || together > @bounds[:together])
      path = "#{@directory}/#{files[gone]}"
      before = told?(path) ? 0 : 1 + lost_before(path)
      lost += before if remove(path)
      together -= sizes[gone]
      gone += 1
    end
    lost
  end

  def told?(name)
    name.end_with?('@told')
  end

  # Number of lost runs in the first line of a file; 0 if it cannot be read.
  def lost_before(path)
    line = File.open(path, File::RDONLY | File::NOFOLLOW | File::NONBLOCK) { |file| file.gets("\n", 1 << 16) if file.stat.file? }
    lost = JSON.parse(line).dig('begun', 'lost')
    (lost.is_a?(Integer) && lost.between?(0, 1 << 32)) ? lost : 0
  rescue StandardError
    0
  end

  # Size of the file; 0 if `again-fleet executor` has removed or renamed it.
  def size(path)
    File.lstat(path).size
  rescue SystemCallError
    0
  end

  # Removes a file. Returns whether it was removed.
  def remove(path)
    File.unlink(path)
  rescue SystemCallError => e
    Puppet.debug("events: #{e.message}")
    false
  end

  # Writes a whole line or nothing. Returns whether it was written.
  def write(text)
    written = @file.syswrite(text)
    raise IOError, 'there is no room for a whole line' if written < text.bytesize

    @size += written
    true
  rescue SystemCallError, IOError => e
    warn(e.message)
    @file.truncate(@size)
    false
  end

  # Wakes the service, without blocking: the service reads the spool from time to time anyway. The last line tries again even if the
  # socket was not there at the first.
  def ring(last)
    now = Process.clock_gettime(Process::CLOCK_MONOTONIC, :millisecond)
    # The service reads again after twice this time (`PACE` of fleet/src/service/publisher.rs).
    return if !last && @rung && now - @rung < 10

    @rung = now
    @bell = nil if last && !@bell
    @bell = connect if @bell.nil?
    @bell.sendmsg_nonblock("\n", exception: false) if @bell
  rescue SystemCallError, IOError => e
    Puppet.debug("events: nobody hears the bell: #{e.message}")
    @bell.close if @bell
    @bell = false
  end

  def connect
    socket = Socket.new(:UNIX, :DGRAM)
    socket.connect(Socket.pack_sockaddr_un(@socket))
    socket
  rescue SystemCallError, ArgumentError => e
    Puppet.debug("events: nobody hears the bell: #{e.message}")
    socket&.close
    false
  end
end
