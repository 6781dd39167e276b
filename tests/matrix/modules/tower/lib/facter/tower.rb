# The levels that are there.
Facter.add(:tower) do
  setcode { Dir.glob('/tmp/tower-*').map { |file| file[/\d+\z/] } }
end
