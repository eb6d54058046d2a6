"""What convolutions share: windows, filter volumes, words of masks, traits."""
